"""Write the lessons as Jupyter notebooks (needs the extra "notebook").

Without an argument it writes one for each lesson, 00-start-here.ipynb, and 00-one-step.ipynb, a
training step with every number in it; with a file my_layer.py one for each pair in it (see
npgpt gradcheck --help).
They run in JupyterLab, VS Code and hosted notebooks, where your code has no limits.
"""

import os
from pathlib import Path

from npgpt.cli.exercise import add_input_argument, lessons_of
from npgpt.errors import UserError
from npgpt.files import read_bytes, write_atomically
from npgpt.study.exercises.exercise import FOLDER
from npgpt.study.lessons.table import LESSONS
from npgpt.study.notebooks.one_step import step_cells
from npgpt.study.notebooks.write import as_bytes, file_of, lesson_cells, start_cells


def add_arguments(parser):
    parser.add_argument(
        "layer",
        nargs="?",
        default="all",
        metavar="LAYER",
        help=f"{', '.join(LESSONS)}, or a file my_layer.py; by default all",
    )
    add_input_argument(parser)
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        default=FOLDER,
        help=f"the folder to write to, by default {FOLDER}, where npgpt learn keeps the progress",
    )


def run_notebook(args):
    out = Path(args.out)
    lessons = lessons_of(args, right=True)
    texts = {file_of(lesson): as_bytes(lesson_cells(lesson, out)) for lesson in lessons}
    if args.layer == "all":
        texts["00-start-here.ipynb"] = as_bytes(start_cells())
        texts["00-one-step.ipynb"] = as_bytes(step_cells())
    for name, text in texts.items():
        path = out / name
        if os.path.lexists(path) and read_bytes(path) != text:
            raise UserError(
                f"{path} exists and has changed: choose another folder with --out, or delete it"
            )
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_atomically(out / name, text)
    print(f"{out}: {', '.join(texts)}\nopen them in JupyterLab, VS Code or a hosted notebook")
