"""The network of the README's section "By hand" trains."""

import re
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
