"""The examples of the README run."""

import re
import runpy
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_network_by_hand_learns_its_text(capsys):
    section = README.read_text(encoding="utf-8").partition("### By hand")[2]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    names = {}
    exec(compile(code, str(README), "exec"), names)
    assert float(capsys.readouterr().out.split()[1]) == round(float(names["loss"]), 3)
    # With eight characters of context at most a few letters remain uncertain; guessing evenly costs log(15) = 2.7.
    assert names["loss"] < 1.3


def test_the_example_for_notebooks_names_its_mistake(tmp_path):
    section = README.read_text(encoding="utf-8").partition("In a notebook")[2]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    (tmp_path / "example.py").write_text(code.replace("\nnpgpt.study.check(", "\nfound = npgpt.study.check("))
    assert "the factor weight is missing" in repr(runpy.run_path(str(tmp_path / "example.py"))["found"])
