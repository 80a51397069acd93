"""Planting a bug in a backward, for the learner to find: one of the common mistakes that the derivation notes."""

import functools

from npgpt.study.exercises.exercise import file_text, key_of, statements
from npgpt.study.exercises.mathematics import read_notes
from npgpt.study.gradcheck.source import backward_tree, read_source
from npgpt.study.lessons.table import LESSONS


@functools.cache
def bug_layers():
    """Return the layers that have exercises with bugs: those whose derivation notes a mistake."""
    return [name for name, lesson in LESSONS.items() if any(note.mistake for note in read_notes(lesson).values())]


def bug_text(lesson, seed, path):
    """Return the text of an exercise file with a bug in the lesson's backward; the same seed plants the same bug."""
    task = f"One line of {lesson.backward.__name__} has a bug. Find it, fix it, and check the file."
    commands = {"": "is it fixed?", " --hint": "a hint, and the next one"}
    notes = read_notes(lesson)
    mistakes = [(each, note.mistake) for each in statements(backward_tree(lesson))
                if (note := notes.get(key_of(each))) and note.mistake]
    statement, mistake = mistakes[seed % len(mistakes)]
    lines = list(read_source(lesson.backward).lines)
    line = lines[statement.lineno - 1]
    comment = line[statement.end_col_offset:].lstrip()
    wrong = f"{line[:statement.col_offset]}{mistake}".ljust(len(line) - len(comment) - 2)
    lines[statement.lineno - 1] = f"{wrong}  {comment}".rstrip()        # the comment stays in its column
    return file_text(lesson, f"bug {seed}", task, commands, path, lines)
