"""Judge the hand-ins of a class. It is no sandbox (see child.py): grade in a container."""

import contextlib
import io
import itertools
from pathlib import Path
from typing import NamedTuple

from npgpt.display import HIDE_BARS, tqdm
from npgpt.errors import UserError, one_line
from npgpt.files import read_bytes
from npgpt.study.exercises import exercise as exercises
from npgpt.study.judge.child import run_child

MACOSX = "__MACOSX"  # what macOS adds to an archive
NOT_JUDGED = {".ipynb": "a notebook: hand in a .py file", ".zip": "an archive: unpack it"}


class Row(NamedTuple):
    """The verdict on an exercise: right, wrong, unfinished, error or missing."""

    student: str
    exercise: str
    verdict: str = "missing"
    line: int | None = None
    gradient: str = ""
    mistake: str = ""
    remarks: tuple[str, ...] = ()


def grade(folder, seed, seconds):
    """Return the `Row`s of a class, and a line on each file that is not judged.

    folder: holds a folder for each student, or the hand-ins of one; seed: of all random cases;
    seconds: for each file. Raises UserError without a hand-in.
    """
    rows, files, others = read_class(Path(folder))  # all of them, before one of them runs
    for key, exercise in tqdm(files.items(), "grade", disable=HIDE_BARS):
        rows[key] = judged(rows[key], exercise, seed, seconds)
    return [*rows.values()], others


def read_class(folder):
    """Return (student, exercise) -> `Row`, to its `Exercise`, and a line on each other file."""
    students = [one_line(each.name) for each in folder.glob("[!.]*/") if each.name != MACOSX]
    rows, files, others = {}, {}, []
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder)
        if path.is_dir() or any(each.startswith((".", MACOSX)) for each in place.parts):
            continue
        *folders, _ = place.parts
        try:
            key = one_line([*folders, folder.resolve().name][0]), step_in(path).name
        except (UserError, OSError) as error:
            others.append(f"{one_line(place)}: {reason(error, path)}")
            continue
        if students and not folders:
            raise UserError(f"{path} is beside the students' folders: move it away")
        remarks = [f"handed in more than once: {one_line(place)} counts"] * (key in rows)
        files.pop(key, None)
        try:
            files[key] = exercise = exercises.read_exercise(path)
            rows[key] = Row(*key, remarks=(*remarks, *remarks_on(exercise)))
        except UserError as error:
            rows[key] = Row(*key, "error", mistake=reason(error, path), remarks=(*remarks,))
    if not rows:
        raise UserError("; ".join([f"{folder}: no exercise was handed in", *others]))
    for student, name in itertools.product(students, {name for _, name in rows}):
        why = tuple(each for each in others if each.startswith(f"{student}/"))
        rows.setdefault((student, name), Row(student, name, remarks=why))
    return dict(sorted(rows.items())), files, others


def step_in(path):
    """Return the `Step` of a hand-in. Raises UserError, which says why it has none; OSError."""
    kind = path.suffix.lower() or path.name
    if kind != ".py":
        raise UserError(NOT_JUDGED.get(kind, "no .py file"))
    if b"\0" in read_bytes(path):
        raise UserError("not UTF-8 but UTF-16: save it as UTF-8")
    step = exercises.read_title(path)
    if ":" in step.layer:
        raise UserError("on a layer in a file of one's own: npgpt exercise check judges it")
    if not step.is_bug and step.what not in exercises.levels_of(step.layer):
        raise UserError(f"{step.layer} has no {step.what}")
    return step


def remarks_on(exercise):
    """Yield remarks on a file: on another forward, and a second exercise below the first."""
    if forward := exercises.forward_remark(exercise):
        yield forward
    for i, line in enumerate(exercise.text.splitlines()[1:], 2):
        if exercises.TITLE.fullmatch(line):
            yield f"line {i} begins another exercise, which is not judged"


def judged(row, exercise, seed, seconds):
    """Return the `Row` of an exercise that was judged."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # what it prints
            report = run_child(exercise, seconds, seed)
    except UserError as error:
        return row._replace(verdict="error", mistake=reason(error, exercise.path))
    row = row._replace(remarks=(*row.remarks, *report.notes), line=next(iter(report.to_do), None))
    if report.sound:
        return row._replace(verdict="right" if report.right else "unfinished")
    first = report.wrong[0]
    said = "; ".join(map(str, [*([] if first.name else first.evidence), *first.mistakes]))
    return row._replace(verdict="wrong", line=first.line, gradient=first.name, mistake=said)


def reason(error, path):
    """Return why a file cannot be judged, in one line that does not name it."""
    return one_line(error).removeprefix(str(path)).lstrip(",: ")
