"""Only an object's own methods write its attributes. The check knows the attributes of npgpt's own classes."""

import ast
from pathlib import Path

import npgpt

ROOT = Path(npgpt.__file__).parent


def own_attributes(tree):
    """The attributes that the classes of a module have: fields, and what methods assign to self."""
    for each in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(each):
            if isinstance(node, ast.Attribute) and is_written(node) and ast.unparse(node.value) == "self":
                yield node.attr
        yield from (target.id for node in each.body if isinstance(node, ast.AnnAssign | ast.Assign)
                    for target in ([node.target] if isinstance(node, ast.AnnAssign) else node.targets)
                    if isinstance(target, ast.Name))


def is_written(node):
    return isinstance(node.ctx, ast.Store | ast.Del)


def made_in(function):
    """The names that a function binds to what a call returns."""
    made = [node for node in ast.walk(function) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    return {target.id for node in made for target in node.targets if isinstance(target, ast.Name)}


def writes(tree):
    """(object, attribute, line) of each write to an attribute of what is neither self nor made in the same function."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    made = {id(node) for function in functions for node in ast.walk(function) if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name) and node.value.id in made_in(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_written(node) and id(node) not in made:
            if ast.unparse(node.value) not in ("self", "cls", "args", "namespace"):     # the last two are argparse's
                yield ast.unparse(node.value), node.attr, node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            yield ast.unparse(node.args[0]), ast.unparse(node.args[1]), node.lineno


def test_no_module_writes_an_attribute_of_another_modules_object():
    trees, owners = {path.relative_to(ROOT): ast.parse(path.read_text()) for path in ROOT.rglob("*.py")}, {}
    for name, tree in trees.items():
        for attribute in own_attributes(tree):
            owners.setdefault(attribute, set()).add(name)
    assert [f"{name}, line {line}: {owner}.{attribute}" for name, tree in trees.items()
            for owner, attribute, line in writes(tree) if name not in owners.get(attribute, {name})] == []
