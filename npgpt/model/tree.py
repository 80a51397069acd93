"""Trees of arrays, nested by the dots of the parameters' names."""


def nest(named):
    """{"h.0.ln_1.weight": array, …} -> {"h": {0: {"ln_1": {"weight": array}}}, …}: names split at
    their dots.
    """
    tree = {}
    for name, array in named.items():
        *path, last = (int(part) if part.isdigit() else part for part in name.split("."))
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = array
    return tree


def flatten(tree, prefix=""):
    """The inverse of `nest`, without leaves that are None (the gradients of biases that a model
    does not have).
    """
    named = {}
    for part, node in tree.items():
        if isinstance(node, dict):
            named |= flatten(node, f"{prefix}{part}.")
        elif node is not None:
            named[f"{prefix}{part}"] = node
    return named
