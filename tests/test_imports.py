"""Imports go one way: cli -> study -> api -> training -> engine -> model -> layers; checkpoints and data beside."""

import ast
import graphlib
from pathlib import Path

import npgpt
from npgpt.cli.main import COMMANDS

ROOT = Path(npgpt.__file__).parent
# Rooms for all.
BOTTOM = {"arrays", "checks", "devices", "display", "download", "errors", "fields", "files",
          "interrupts", "keywords"}
BELOW = {"layers": set(), "model": {"layers"}, "engine": {"model", "layers"}, "data": set(),
         "checkpoints": {"data", "model"}, **{room: BOTTOM for room in BOTTOM}}
BELOW["training"] = {"engine", "model", "layers", "checkpoints", "data"}
BELOW["api"] = BELOW["training"] | {"training"}
BELOW["loading"] = BELOW["api"] | {"api"}
BELOW["study"] = BELOW["loading"] | {"loading"}
BELOW["cli"] = BELOW["study"] | {"study"}
BELOW["__init__"], BELOW["__main__"] = BELOW["study"], BELOW["cli"] | {"cli"}


def modules_imported(path):
    """The modules of npgpt that a file imports, also inside functions; `import npgpt` and its names are the api's."""
    tree = ast.parse(path.read_text())
    if path == ROOT / "cli/main.py":
        yield from (f"cli.{command}" for command in COMMANDS)       # by their names
    if path != ROOT / "__init__.py":        # there it shows what is imported when it is used
        tree.body = [node for node in tree.body if not ast.unparse(node).startswith("if TYPE_CHECKING:")]  # never run
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for package, _, name in (each.partition(".") for each in names):
            if package == "npgpt":
                yield name if module_file(name) else "api"


def module_file(name):
    """The file of a module, or of the module whose attribute a dotted name is; None if there is none."""
    parts = name.split(".") if name else []
    for end in range(len(parts), 0, -1):
        for path in (ROOT.joinpath(*parts[:end]).with_suffix(".py"), ROOT.joinpath(*parts[:end]) / "__init__.py"):
            if path.exists():
                return path


def test_no_import_goes_upwards():
    upwards, found = [], set()
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).with_suffix("").parts[0]
        allowed = BELOW[room] | BOTTOM | {room}
        for module in modules_imported(path):
            found.add((room, module.split(".")[0]))
            if module.split(".")[0] not in allowed:
                upwards.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not upwards
    assert {("cli", "api"), ("engine", "layers"), ("training", "engine"), ("checkpoints", "data")} <= found


def test_there_are_no_circles():
    """Of files, also inside a room, and so none of rooms either."""
    graph = {path: {module_file(name) for name in modules_imported(path) if module_file(name)} - {path}
             for path in ROOT.rglob("*.py") if path.name != "__init__.py"}
    graphlib.TopologicalSorter(graph).prepare()         # raises CycleError, with the circle
