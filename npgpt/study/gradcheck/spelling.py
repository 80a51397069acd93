"""How people call the gradient of a variable v: `dv`, `d_v`, `grad_v`, `v_grad`, `dL_dv`,
`delta_v`, …
"""

import functools

FORMS = (
    "d{}",
    "d_{}",
    "grad_{}",
    "{}_grad",
    "dL_d{}",
    "dLd{}",
    "dl_d{}",
    "dJ_d{}",
    "dloss_d{}",
    "D{}",
    "D_{}",
    "delta_{}",
    "{}_delta",
    "grad{}",
    "g_{}",
    "{}_gradient",
    "gradient_{}",
    "d{}s",
)


@functools.lru_cache(64)
def spellings(variables):
    """Return name -> variable for the names of gradients of some variables; that of the only `a.w`
    may be dw.
    """
    found = {}
    last = [variable.rpartition(".")[2] for variable in variables]
    for fold in (str, str.lower):
        for form in FORMS:
            for variable, end in zip(variables, last, strict=True):
                for name in [variable.replace(".", "_")] + [end] * (last.count(end) == 1):
                    found.setdefault(form.format(fold(name)), variable)
                    found.setdefault(fold(form).format(fold(name)), variable)
    return {name: variable for name, variable in found.items() if name not in variables}


def variable_of(name, variables):
    """Return the variable whose gradient has this name, or None."""
    found = spellings(tuple(variables))
    return None if name in variables else found.get(name, found.get(name.lower()))


def canonical(names, variables):
    """Return name -> "dv" for those of `names` that are names of the gradient of a variable v,
    "da_w" of a.w.
    """
    found = {name: variable_of(name, variables) for name in names}
    return {name: f"d{variable.replace('.', '_')}" for name, variable in found.items() if variable}
