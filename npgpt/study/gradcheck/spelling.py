"""How people call the gradient of a variable v: `dv`, `d_v`, `grad_v`, `v_grad`, `dL_dv`,
`delta_v`, …
"""

import functools
import inspect
import re

from npgpt.study.gradcheck.source import Selfless, names_in, parsed

FORMS = """
d{} d_{} grad_{} {}_grad dL_d{} dLd{} dl_d{} dJ_d{} dloss_d{} D{} D_{} delta_{}
{}_delta grad{} g_{} {}_gradient gradient_{}
""".split()


@functools.lru_cache(256)
def spellings(variables):
    """Return name -> variable for the names of gradients; that of the only `a.w` may be dw."""
    found = {}
    last = [bare(variable.rpartition(".")[2]) for variable in variables]
    for fold in (str, str.lower):
        for form in FORMS:
            for variable, end in zip(variables, last, strict=True):
                for name in [variable.replace(".", "_")] + [end] * (last.count(end) == 1):
                    found.setdefault(form.format(fold(name)), variable)
                    found.setdefault(fold(form).format(fold(name)), variable)
    return {name: variable for name, variable in found.items() if name not in ("grad", "grads")}


def bare(name):
    """Return the name of an attribute without the underscores of a private one: w of `__w`,
    `_Affine__w`.
    """
    return re.sub(r"^_+([A-Za-z]\w*?__)?", "", name) or name


def variable_of(name, variables):
    """Return the variable whose gradient has this name, or None."""
    found = spellings(tuple(variables))
    if name in variables:
        return None
    words = name, bare(name), bare(name).lower()
    return next((found[each] for each in words if each in found), None)


@functools.lru_cache(256)
def arguments_and_names(code):
    """Return the arguments of a function, in order, then all names in it. code: its `__code__`."""
    tree = Selfless().visit(parsed(code))
    return [each.arg for each in tree.args.args] + sorted(names_in(tree))


def spelled(forward, backward, inputs=()):
    """Return name -> "dv" for the names in a backward of gradients of the forward's variables,
    "da_w" for a.w.
    """
    codes = [inspect.unwrap(each).__code__ for each in (forward, backward)]
    arguments, words = map(arguments_and_names, codes)
    variables = tuple(dict.fromkeys([*inputs, *arguments]))
    if forward is backward:  # a loss and its gradients
        variables = tuple(each for each in variables if each not in spellings(variables))
    found = {name: variable_of(name, variables) for name in words}
    return {name: f"d{variable.replace('.', '_')}" for name, variable in found.items() if variable}
