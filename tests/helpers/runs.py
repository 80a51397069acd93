"""What tests of commands ask of a command's result, and of the folder of a run."""

import contextlib
import json
from pathlib import Path

import pytest

from npgpt.checkpoints.run import find_checkpoint, step_folders
from npgpt.errors import UserError


def refused(result, *says):
    """One line on standard error that says each of these, exit code 2."""
    code, _, err = result
    assert code == 2
    assert len(err.splitlines()) == 1 and err.startswith("npgpt: ") and "Traceback" not in err
    for words in says:
        assert str(words) in err


@contextlib.contextmanager
def refusing(says):
    """A UserError of one line, in which this pattern is found."""
    with pytest.raises(UserError, match=says) as caught:
        yield caught
    assert "\n" not in str(caught.value)


def succeeded(result, *says):
    """Exit code 0, and standard output that says each of these. Return the output."""
    code, out, err = result
    assert code == 0, err
    for words in says:
        assert str(words) in out
    return out


def answers(count):
    """Write answers.jsonl: after a letter and =, the same letter twice."""
    rows = [
        {"prompt": f"{letter}=", "completion": 2 * letter}
        for letter in "abcdefghijklmnopqrst"[:count]
    ]
    Path("answers.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")


def nothing_left(out_dir):
    """Whether nothing is there but checkpoints, metrics, the curve and the lock."""
    return not {path.name for path in out_dir.iterdir()} - {
        ".npgpt.lock",
        "metrics.jsonl",
        "loss.png",
        *(folder.name for folder in step_folders(out_dir)),
    }


def bits(out_dir):
    """Return the bytes of a checkpoint's tensors."""
    folder = find_checkpoint(out_dir)
    return {
        name: (folder / name).read_bytes()
        for name in ("model.safetensors", "optimizer.safetensors")
    }
