"""What is said about an exercise's file beside the verdict: an edited forward, a name that the cache does not hold."""

import ast
import inspect
import re

from npgpt.study.exercises.exercise import find_function
from npgpt.study.gradcheck.source import parsed, read_source


def forward_remark(exercise):
    """Return a sentence if the forward in an exercise's file is not the package's, or None. Comments do not count."""
    forward = exercise.lesson.forward
    theirs = find_function(ast.parse(exercise.text), forward)
    if theirs is None or ast.dump(theirs) == ast.dump(parsed(forward)):
        return None
    return f"the {forward.__name__} in this file differs from npgpt's: the judge calls npgpt's own"


def cache_remark(name, lesson):
    """Return a sentence if a lesson's forward has a variable `name`, but its cache does not hold it; or None."""
    forward = {*inspect.signature(lesson.forward).parameters,
               *(each for statement in read_source(lesson.forward).statements for each in statement.targets)}
    held = next((each.text.partition(" = ")[0] for each in read_source(lesson.backward).statements
                 if each.text.endswith(" = cache")), "")
    if not held or name not in forward or name in re.findall(r"\w+", held):
        return None
    return f"{name} is not in the cache, which holds {held}"
