"""The benchmark's peers do not import npgpt, which changes how memory is allocated."""

import ast
from pathlib import Path

TOOLS = {path.stem: path for path in (Path(__file__).resolve().parents[2] / "tools").rglob("*.py")}


def test_peers_are_measured_without_npgpt():
    for stem in ("peers", "shapes"):
        for node in ast.walk(ast.parse(TOOLS[stem].read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None), *(each.name for each in node.names)]
                assert not [name for name in names if name and name.startswith(("npgpt", "tests"))]
