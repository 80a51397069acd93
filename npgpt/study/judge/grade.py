"""Judge a class: a folder of hand-ins, one folder for each student.

All files are read before one of them runs. Each is judged in a process and a new folder of its own, with a copy of
npgpt and of the teacher's lesson; nothing of them is left afterwards. So a hand-in that changes other files or leaves
processes behind spoils no row but its own. "Right" is checked here. This is no sandbox (see child.py): it protects the
rows, not the machine.
"""

import ast
import concurrent.futures
import contextlib
import itertools
import os
import shutil
import signal
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import npgpt
from npgpt.display import HIDE_BARS, tqdm
from npgpt.errors import UserError, describe, one_line
from npgpt.files import read_bytes, read_python
from npgpt.study.exercises.bugs import bug_layers
from npgpt.study.exercises.exercise import TITLE, Exercise, Step, forward_remark, levels_of
from npgpt.study.gradcheck.truth import cases
from npgpt.study.judge.child import MAIN, SUBREAPER, Child, ask, prctl
from npgpt.study.lessons.table import LESSONS

FILE = "exercise.py"            # what a hand-in is called where it is judged


class Row(NamedTuple):
    """The verdict on an exercise of a student: right, wrong, unfinished, error or missing.

    line: the first that is wrong or still to be written; mistake: what it is, or the reason of an error.
    """

    student: str
    exercise: str
    verdict: str = "missing"
    line: int | None = None
    gradient: str = ""
    mistake: str = ""
    remarks: str = ""


def grade(folder, pairs, seed, seconds):
    """Return the `Row`s of a class, student by student, and the files that are no exercises.

    pairs: the teacher's lessons; seed: of all random cases; seconds: for each file. Raises UserError without a hand-in.
    """
    with warnings.catch_warnings(action="ignore"):          # that Python has about what students write
        rows, exercises, others = read_class(Path(folder), {pair.name: pair.key for pair in pairs})
    children, pool = Children(), concurrent.futures.ThreadPoolExecutor(2)
    prctl(SUBREAPER, 1)
    futures = {key: pool.submit(judged, rows[key], each, seed, seconds, children) for key, each in exercises.items()}
    try:
        for _ in tqdm(concurrent.futures.as_completed(futures.values()), "grade", len(futures), disable=HIDE_BARS):
            pass
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        while not all(each.done() for each in futures.values()):        # after Ctrl-C
            for child in [*children.live]:
                child.kill()
            time.sleep(0.01)
        prctl(SUBREAPER, 0)
    return [futures[key].result() if key in futures else row for key, row in rows.items()], others


def read_class(folder, lessons):
    """Return {(student, exercise): `Row`}, the `Exercise`s that can be judged by the same keys, and the other files.

    lessons: name -> key of the teacher's. Links are not followed; folders that begin with a dot are left out.
    """
    found, others, rows, exercises = {}, [], {}, {}
    students = [each.name for each in sorted(folder.glob("[!.]*/"))]
    for path in sorted(folder.rglob("*.py")):
        title = None
        with contextlib.suppress(ValueError, OSError):      # not UTF-8, too many bytes, a pipe
            line = "" if path.is_symlink() else read_bytes(path).decode("utf-8-sig").split("\n", 1)[0]
            title = TITLE.fullmatch(line.rstrip("\r"))
        if not any(each[0] == "." for each in path.relative_to(folder).parts):
            if title and (title[2] or title[1] in LESSONS):
                found[path] = title.groups()
            else:
                others.append(one_line(path.relative_to(folder)))
    if not found:
        raise UserError(f"{folder}: " + ("nothing was handed in: no file begins with the title of an exercise"
                                         if folder.is_dir() else "there is no such folder"))
    if any(path.parent == folder for path in found):        # one hand-in
        students = [folder.resolve().name]
    for path, (layer, of, what) in found.items():
        step = Step(lessons.get(layer, layer) if of else layer, what)
        student = students[0] if len(students) == 1 else path.relative_to(folder).parts[0]
        key = one_line(student), one_line(f"{layer} {what}")
        again = f"handed in more than once: {one_line(path.relative_to(folder))} counts"
        remarks = [again] if key in rows else []
        exercises.pop(key, None)
        try:
            if of and layer not in lessons:
                raise UserError(f"--lessons must name the file that has the lesson {layer}")
            if what not in levels_of(step.layer) and not (step.is_bug and step.layer in bug_layers()):
                raise UserError(f"{layer} has no {what}")
            exercises[key] = Exercise(step.layer, what, path, read_python(path)[0])
            remarks += filter(None, [forward_remark(exercises[key]), own_remark(exercises[key])])
            rows[key] = Row(*key, remarks="; ".join(remarks))
        except (ValueError, RecursionError, MemoryError) as error:
            rows[key] = Row(*key, "error", mistake=reason(error, path), remarks="; ".join(remarks))
    every = itertools.product([one_line(each) for each in students], sorted({name for _, name in rows}))
    return {key: rows.get(key, Row(*key)) for key in every}, exercises, others


def own_remark(exercise):
    """Return a remark if a file names npgpt's own backward, or what knows the truth; None if it does not."""
    named = {part for node in ast.walk(ast.parse(exercise.text)) for part in vars(node).values()
             if isinstance(part, str) and not isinstance(node, ast.FunctionDef | ast.Name)}
    own = {each for each in named if each == exercise.lesson.backward.__name__ or each.startswith("npgpt.study")}
    return f"uses npgpt's own {', '.join(sorted(own))}" if own else None


def judged(row, exercise, seed, seconds, children):
    """Return the `Row` of an exercise that was judged."""
    def run(request, seconds):
        return *children.run(folder, exercise, request, seconds), b""        # without what it printed

    try:
        with tempfile.TemporaryDirectory(prefix="npgpt-", ignore_cleanup_errors=True) as folder:
            layer = f"{folder}/lessons/{Path(exercise.layer).name}" if exercise.lesson.is_own else exercise.layer
            report = ask(FILE, seconds, (layer, exercise.what, seed), exercise.lesson.backward.__name__,
                         lambda: cases(exercise.layer, seed), run).report
        first = next(iter(report.wrong), None)
        said = [getattr(first, "what", ""), *first.mistakes] if first else []
        return row._replace(
            verdict="right" if report.right else "wrong" if first else "unfinished",
            line=first.line if first else next(iter(report.to_do), None), gradient=getattr(first, "name", ""),
            mistake="; ".join(filter(None, map(str, said))),
            remarks="; ".join(filter(None, [row.remarks, *report.notes])))
    except Exception as error:      # whatever a hand-in leads to, it is in its row
        return row._replace(verdict="error", mistake=reason(error, FILE))


def reason(error, path):
    """Return why a file cannot be judged, in one line that does not name it."""
    text = str(error) if isinstance(error, UserError) else describe(error)
    return text.removeprefix(str(path)).lstrip(",: ")


class Children:
    """The processes that judge, in folders of their own. Nothing that they start outlives them, if this is Linux."""

    def __init__(self):
        self.lock, self.live, self.others = threading.Lock(), set(), {*children_of_this()}

    def run(self, folder, exercise, request, seconds):
        """Return how the process for a hand-in ended, and its answer. It runs a copy of npgpt and of the lesson."""
        shutil.copytree(Path(npgpt.__file__).parent, f"{folder}/npgpt", ignore=lambda _, names: {
            each for each in names if each.endswith((".png", ".webp", ".safetensors", "planted.json"))})
        lessons, work = (Path(folder, name) for name in ("lessons", "work"))
        lessons.mkdir()         # not in the folder of npgpt, which is searched before Python's own modules
        work.mkdir()
        for own in [exercise.lesson.file, exercise.lesson.derivation] if exercise.lesson.is_own else ():
            if own.exists():
                shutil.copy(own, lessons)
        (work / FILE).write_text(exercise.text, encoding="utf-8")
        with self.lock:
            child = Child(*MAIN, first=folder, cwd=str(work))
            self.live.add(child)
        try:
            return child.run(request, seconds)[:2]
        finally:
            with self.lock:
                self.live.remove(child)
                self.end_strays()

    def end_strays(self):
        """Kill the processes whose parent has ended, so that this one inherited them, and then those they leave."""
        for _ in range(100):        # they may fork meanwhile
            strays = {*children_of_this()} - self.others - {child.pid for child in self.live}
            for pid in strays:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
            if not strays:
                break


def children_of_this():
    """Yield the ids of the processes whose parent is this one; on Linux."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_bytes().rpartition(b")")[2].split()[1]) == os.getpid():
                yield int(stat.parent.name)
