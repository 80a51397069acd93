"""Planting a bug in a backward, for the learner to find: a mistake that the derivation notes."""

import functools

from npgpt.study.exercises.exercise import file_text, key_of, replace_code, statements
from npgpt.study.exercises.mathematics import read_notes
from npgpt.study.gradcheck.source import backward_tree, read_source
from npgpt.study.lessons.table import LESSONS


@functools.cache
def bug_layers():
    """Return the layers that have exercises with bugs: those whose derivation notes a mistake."""
    return [name for name, lesson in LESSONS.items() if mistakes_of(lesson)]


def mistakes_of(lesson):
    """Return {key of a line of the backward: a common mistake in it}."""
    return {key: note.mistake for key, note in read_notes(lesson).items() if note.mistake}


def place_of(lesson, seed):
    """Return the statement in which a seed plants its bug."""
    mistakes = mistakes_of(lesson)
    places = [each for each in statements(backward_tree(lesson)) if key_of(each) in mistakes]
    return places[seed % len(places)]


def bug_text(step, path, commands=True):
    """Return the text of an exercise file with a bug; the same seed plants the same bug."""
    lesson = step.lesson
    task = f"One line of {lesson.backward.__name__} has a bug. Find it, fix it, and check the file."
    place = place_of(lesson, step.level)
    lines = list(read_source(lesson.backward).lines)
    replace_code(lines, place, place, mistakes_of(lesson)[key_of(place)])
    return file_text(step, task, path, lines, commands)
