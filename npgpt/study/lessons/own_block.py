"""A user's block (see npgpt/model/block.py) as a lesson."""

import dataclasses
from pathlib import Path

import numpy as np

from npgpt.model.block import FUNCTIONS, asked, places, read_block
from npgpt.study.lessons.lesson import Lesson
from npgpt.study.lessons.setting import PLAIN, SIZES
from npgpt.study.lessons.table import block_arguments

SIZES_OF_BLOCK = SIZES._replace(B=3, C=8, V=11, F=20)  # for blocks that need an even head size


@dataclasses.dataclass(frozen=True, eq=False)
class OwnBlock(Lesson):
    """A file's forward and backward, with arrays for GPT-2's config and that block."""

    file: Path | None = None

    name, is_own = "block", True
    may_be_frozen = property(lambda self: self.inputs.keys() - self.shapes.keys())

    def at(self, setting=PLAIN):
        options = (("block", read_block(self.file)),)
        return super().at(dataclasses.replace(setting, sizes=SIZES_OF_BLOCK, options=options))


def block_lesson(file, names):
    """Return the lesson of the block of a file, or None if its names are not those of a block."""
    if not names.keys() >= {*FUNCTIONS}:
        return None
    forward, backward = names["forward"], names["backward"]

    def others(setting, rng):
        where = places(np.empty(setting.sizes[:3]))
        return block_arguments(setting, rng) | asked(forward, where)

    return OwnBlock("Block", forward, backward, {"x": "B T C"}, others, params="h.0.", file=file)
