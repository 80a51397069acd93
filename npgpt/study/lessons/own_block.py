"""A user's block (see npgpt/model/block.py) as a lesson."""

import dataclasses
from pathlib import Path

from npgpt.model.block import FUNCTIONS, read_block
from npgpt.model.config import GPTConfig
from npgpt.study.lessons.lesson import Lesson
from npgpt.study.lessons.setting import PLAIN, SIZES
from npgpt.study.lessons.table import block_arguments

SIZES_OF_BLOCK = SIZES._replace(B=3, C=8, V=11, F=20)       # for blocks that need an even head size


@dataclasses.dataclass(frozen=True, eq=False)
class OwnBlock(Lesson):
    """The functions forward and backward of a file, with arrays for GPT-2's config and that block."""

    file: Path | None = None

    name, is_own = "block", True
    may_be_frozen = property(lambda self: self.inputs.keys() - self.shapes.keys())

    def at(self, setting=PLAIN):
        config = GPTConfig(dropout=setting.p, block=read_block(self.file))
        return super().at(dataclasses.replace(setting, sizes=SIZES_OF_BLOCK, config=config))


def block_lesson(file, names):
    """Return the lesson of the block of a file, or None if its names are not those of a block."""
    if not names.keys() >= {*FUNCTIONS}:
        return None
    return OwnBlock("Block", names["forward"], names["backward"], {"x": "B T C"}, block_arguments, params="h.0.",
                    file=file)
