"""How far it is from `npgpt train` to the line that reads the token embedding."""

import sys
import traceback

import pytest

from npgpt import layers
from npgpt.cli.main import main

ROOMS = ["cli", "study", "api", "training", "engine", "model", "layers"]


@pytest.mark.parametrize("threads", ["1", "2"])
def test_nine_calls_lead_from_the_command_to_the_embedding_and_none_goes_up(threads, tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("to be, or not to be. " * 50)
    stacks = []
    original = layers.embedding_forward

    def embedding_forward(idx, wte, wpe):
        stacks.append([frame for frame in traceback.extract_stack(sys._getframe(1)) if "npgpt" in frame.filename])
        return original(idx, wte, wpe)

    monkeypatch.setattr(layers, "embedding_forward", embedding_forward)
    main(["train", "--corpus", str(tmp_path / "text.txt"), "--out-dir", str(tmp_path / "out"), "--max-iters", "1",
          "--n-layer", "1", "--n-embd", "8", "--n-head", "1", "--block-size", "8", "--threads", threads])
    training = [stack for stack in stacks if any(frame.name == "train_step" for frame in stack)]
    assert len(training) == 1
    stack = training[0][[frame.name for frame in training[0]].index("main"):]
    assert len(stack[1:]) + 1 <= 9, [frame.name for frame in stack]         # the last call is the embedding's
    rooms = [next(room for room in ROOMS if f"/npgpt/{room}" in frame.filename) for frame in stack]
    assert [ROOMS.index(room) for room in rooms] == sorted(ROOMS.index(room) for room in rooms), rooms
