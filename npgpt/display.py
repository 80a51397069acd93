"""A bar for progress, in a terminal or a notebook."""

import sys
import warnings

from npgpt import errors

with warnings.catch_warnings(
    action="ignore"
):  # in a notebook without ipywidgets, the bars are text
    from tqdm.autonotebook import tqdm as automatic

HIDE_BARS = (
    False if "ipykernel.zmqshell" in sys.modules else None
)  # tqdm's `disable`; None: unless on a terminal


class tqdm(automatic):
    """A bar, and lines that are written above bars; with -q there is neither."""

    def __init__(self, *args, disable=None, **options):
        super().__init__(*args, disable=errors.quiet or disable, **options)

    @classmethod
    def write(cls, *args, **options):
        if not errors.quiet:
            super().write(*args, **options)
