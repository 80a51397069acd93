"""The programs in tools/ import npgpt and the tests, never the other way, and have no circles among themselves."""

import ast
import graphlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"


def imported(path):
    """The dotted names that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files_imported(path):
    """The files of tools/ that a file there imports."""
    for parts in (name.split(".") for name in imported(path)):
        candidates = [folder.joinpath(*parts[:end]).with_suffix(".py")
                      for folder in (path.parent, TOOLS) for end in range(1, len(parts) + 1)]
        yield from (file for file in candidates if file.exists())


GRAPH = {path: set(files_imported(path)) - {path} for path in TOOLS.rglob("*.py")}


def test_there_are_no_circles():
    graphlib.TopologicalSorter(GRAPH).prepare()         # raises CycleError, with the circle
    assert sum(map(len, GRAPH.values())) > 10


def test_no_import_goes_upwards():
    """A folder's files import only its own; a program may import the files of a folder below."""
    assert not [(path, other) for path, others in GRAPH.items() for other in others
                if other.parent not in (path.parent, *([TOOLS / "torture_parts"] if path.parent == TOOLS else []))]
    above = {"tests", "tools", *(path.stem for path in TOOLS.glob("*.py")), "torture_parts"}
    assert not [(path, name) for path in (ROOT / "npgpt").rglob("*.py") for name in imported(path)
                if name.split(".")[0] in above]


def test_the_peers_of_the_benchmark_do_not_import_npgpt():
    """It changes how memory is allocated."""
    reached, todo = set(), {TOOLS / "bench" / "peers.py"}
    while todo:
        reached |= todo
        todo = set().union(*(GRAPH[path] for path in todo)) - reached
    assert TOOLS / "bench" / "shapes.py" in reached
    assert not [(path, name) for path in reached for name in imported(path) if name.split(".")[0] == "npgpt"]
