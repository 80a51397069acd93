"""The programs in tools/ have no circles among themselves, and the benchmark's peers do not import npgpt."""

import ast
import graphlib
from pathlib import Path

TOOLS = {path.stem: path for path in (Path(__file__).resolve().parents[2] / "tools").rglob("*.py")}


def imported(stem):
    """Yield the dotted names that a program imports, also inside functions."""
    for node in ast.walk(ast.parse(TOOLS[stem].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_there_are_no_circles_and_peers_are_measured_without_npgpt():
    """npgpt changes how memory is allocated."""
    graph = {stem: {part for name in imported(stem) if name.split(".")[0] not in ("npgpt", "tests")
                    for part in name.split(".") if part in TOOLS} - {stem} for stem in TOOLS}
    graphlib.TopologicalSorter(graph).prepare()         # raises CycleError, with the circle
    assert graph["peers"] == {"shapes"} and not graph["shapes"]
    assert not [name for stem in ("peers", "shapes") for name in imported(stem) if name.startswith("npgpt")]
