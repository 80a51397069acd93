"""A bar for progress, in a terminal or a notebook."""

import sys
import warnings

with warnings.catch_warnings(action="ignore"):      # in a notebook without ipywidgets, the bars are text
    from tqdm.autonotebook import tqdm as tqdm

HIDE_BARS = False if "ipykernel.zmqshell" in sys.modules else None      # tqdm's `disable`; None: unless on a terminal
