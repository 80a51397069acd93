"""Imports go one way: cli -> study -> api -> training -> engine -> model -> layers; checkpoints and
data beside.
"""

import ast
import graphlib
from pathlib import Path

import npgpt
from npgpt.cli.main import COMMANDS

ROOT = Path(npgpt.__file__).parent
# Rooms for all.
BOTTOM = {*"arrays checks devices display download errors fields files interrupts keywords".split()}
BELOW = {
    "layers": set(),
    "model": {"layers"},
    "engine": {"model", "layers"},
    "data": set(),
    "checkpoints": {"data", "model"},
    **{room: BOTTOM for room in BOTTOM},
}
BELOW["training"] = {"engine", "model", "layers", "checkpoints", "data"}
BELOW["api"] = BELOW["training"] | {"training"}
BELOW["loading"] = BELOW["api"] | {"api"}
BELOW["study"] = BELOW["loading"] | {"loading"}
BELOW["cli"] = BELOW["study"] | {"study"}
BELOW["__init__"], BELOW["__main__"] = BELOW["study"], BELOW["cli"] | {"cli"}


def modules_imported(path):
    """The modules of npgpt that a file imports, also inside functions; `import npgpt` and its names
    are the api's.
    """
    names = []
    if path == ROOT / "cli/main.py":
        names += [f"npgpt.cli.{command}" for command in COMMANDS]  # by their names
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    inside = [name.partition(".")[2] for name in names if name.split(".")[0] == "npgpt"]
    return [name if module_file(name) else "api" for name in inside]


def module_file(name):
    """The file of a module, or of the module whose attribute a dotted name is; None if there is
    none.
    """
    while name:
        place = ROOT.joinpath(*name.split("."))
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.exists():
                return path
        name, _, _ = name.rpartition(".")


IMPORTED = {path: modules_imported(path) for path in ROOT.rglob("*.py")}


def test_no_import_goes_upwards():
    upwards, found = [], set()
    for path, modules in IMPORTED.items():
        room = path.relative_to(ROOT).with_suffix("").parts[0]
        for module in modules:
            other = module.split(".")[0]
            found.add((room, other))
            if other not in BELOW[room] | BOTTOM | {room}:
                upwards.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not upwards
    assert {("cli", "api"), ("engine", "layers"), ("checkpoints", "data")} <= found


def test_there_are_no_circles():
    """Of files, also inside a room, and so none of rooms either."""
    graph = {
        path: {*map(module_file, modules)} - {path, None}
        for path, modules in IMPORTED.items()
        if path.name != "__init__.py"
    }
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, with the circle
