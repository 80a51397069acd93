"""Where numbers come from, for the script: each entry of an array as an expression of others."""

import json

import numpy as np

from npgpt.study.exercises.terms import Term, entries

CHOICES = "dy.T @ x", "x.T @ dy", "x.T @ y", "2 * x.T @ dy"  # for dweight
FIRST = "x @ weight", "((y - 1) ** 2).mean()", "2 * (y - 1) / 4", "dy @ weight.T", *CHOICES
MOST = 150  # entries of arrays in an expression that can still be read
CLOSE = 1e-9  # relative: the terms have the line's numbers


def first_lines():
    """Return the lines of the page's first screen: code -> {shape, "from": `origin`}."""
    shapes = {"x": (2, 3), "weight": (3, 2), "y": (2, 2), "dy": (2, 2)}
    arrays = {name: np.ones(shape) for name, shape in shapes.items()}
    found = {}
    for code in FIRST:
        value, where = evaluated(code, arrays)
        found[code] = {"shape": value.shape, "from": where}
    return found


def evaluated(code, arrays):
    """Return the value of an expression of named arrays, and its `origin`."""
    shapes = {name: np.shape(each) for name, each in arrays.items()}
    terms = {name: entries(name, each) for name, each in arrays.items()}
    made = np.asarray(eval(code, {"np": np} | terms), object)
    value = np.reshape([each.value for each in made.flat], made.shape)
    return value, origin(made, value, shapes)


def origin(terms, value, shapes):
    """Return where each entry of an array comes from, for the script; None if it is not known.

    terms: the array with its entries as `Term`s; shapes: name -> shape of each array that is shown.
    Returns a dict:
    names: of arrays
    trees: expressions of numbered slots, ["·", 0, 1], and of numbers as texts
    slots: for each tree a list of [number of a name, place, *steps]: the place in that array's
        values is linear in the entry's index. If not, {entry: [(number of a name, place), …]}.
    which: the number of each entry's tree, if there are several
    """
    terms = np.asarray(terms, object)
    numbers = [each.value if isinstance(each, Term) else each for each in terms.flat]
    names = {}  # of the arrays that are used -> number
    is_known = any(isinstance(each, Term) for each in terms.flat)
    if not is_known or terms.shape != np.shape(value) or not close(numbers, value):
        return None
    found, which = {}, []  # tree as text -> tree, number, [index, slots of each entry]
    for index in np.ndindex(terms.shape):
        slots = []
        tree = tree_of(terms[index], slots)
        if len(slots) > MOST or not {name for name, _ in slots} <= shapes.keys():
            return None
        _, number, group = found.setdefault(json.dumps(tree), (tree, len(found), []))
        places = []
        for name, at in slots:
            place = names.setdefault(name, len(names)), flat_index(at, shapes[name])
            places.append(place)
        group.append((index, places))
        which.append(number)
    made = {
        "names": [*names],
        "trees": [tree for tree, *_ in found.values()],
        "slots": [linear(group, terms.shape) for *_, group in found.values()],
    }
    return made | ({"which": which} if len(found) > 1 else {})


def close(numbers, value):
    """Return whether numbers are those of an array."""
    numbers, value = np.array(numbers, np.float64), np.ravel(value)
    return np.allclose(numbers, value, CLOSE, CLOSE, equal_nan=True)


def tree_of(term, slots):
    """Return a `Term` as nested lists; add its entries of arrays, (name, index), to the slots."""
    if not isinstance(term, Term) or term.operation == "number":
        return f"{float(getattr(term, 'value', term)):.6g}"
    if term.operation == "entry":
        slots.append(term.parts)
        return len(slots) - 1
    return [term.operation, *(tree_of(each, slots) for each in term.parts)]


def flat_index(index, shape):
    return int(np.ravel_multi_index(index, shape)) if shape else 0


def linear(group, shape):
    """Return the slots of a tree as `origin` does.

    group: (index, [(name, place), …]) of each entry.
    """
    at = np.array([index for index, _ in group], int).reshape(len(group), -1)
    varies = (at != at[0]).any(axis=0)
    known = np.c_[np.ones(len(at)), np.where(varies, at, 0)]
    slots = np.array([slots for _, slots in group], int).reshape(len(group), -1, 2)
    places = slots[..., 1]
    steps = np.rint(np.linalg.lstsq(known, places, rcond=None)[0]).astype(int)
    if (slots[..., 0] == slots[0, :, 0]).all() and (known @ steps == places).all():
        return np.c_[slots[0, :, 0], steps.T].tolist()
    return {flat_index(index, shape): slots for index, slots in group}
