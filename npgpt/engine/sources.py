"""The source of functions, and digests of the lesson's, with which the replacements were tested."""

import ast
import functools
import hashlib
import inspect
from types import FunctionType

from npgpt import layers
from npgpt.errors import UserError, say_once
from npgpt.model import transformer

# Engines replace these functions, run them on parts of their arrays, or give them other values than
# the lesson's: 0.0 as a frozen matrix's gradient. With other code the lesson's own lines run.
TESTED = {
    "attention_forward": "28932a4f6c76",
    "attention_backward": "1aeb0ce7e991",
    "block_forward": "6e5a08d2a38f",
    "causal_mask": "bc8f4547f465",
    "cross_entropy_forward": "5fb76846e551",
    "cross_entropy_backward": "e4ef0a7bb8e0",
    "embedding_backward": "f66beb1477be",
    "gelu_exact_forward": "b909431a8aaa",
    "gelu_exact_backward": "47679b1ac346",
    "gelu_tanh_forward": "4e20197caea9",
    "gelu_tanh_backward": "ec86d10a300a",
    "gpt_forward": "a3844ba6b146",
    "gpt_backward": "48f1bf36aaad",
    "head_forward": "6ea1f79851db",
    "head_backward": "11d35c31e517",
    "layernorm_forward": "2067e1fa9c4a",
    "layernorm_backward": "8e7c6755de75",
    "linear_forward": "3e888fa151bc",
    "linear_backward": "461a8b052ab2",
    "self_attention_forward": "9290590cf45f",
}


@functools.lru_cache(1024)
def tree_of(code):
    """Return the syntax tree of a function's code.

    It is None if there is no source, or the file has changed since import.
    """
    try:
        tree, codes = parsed("".join(inspect.findsource(code)[0]), code.co_filename)
    except (OSError, SyntaxError):
        return None
    found = [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.FunctionDef)
        and (each.name, first_line(each)) == (code.co_name, code.co_firstlineno)
    ]
    return found[0] if found and code in codes else None


def first_line(function):
    """Return the line at which a function's tree begins: that of its first decorator."""
    return min(each.lineno for each in [function, *function.decorator_list])


@functools.lru_cache(64)
def parsed(source, file):
    """Return the syntax tree of a file, and the code of all that is defined in it.

    A notebook compiles each statement of a cell alone, with other code for what is imported.
    """
    tree = ast.parse(source)
    alone = [ast.Module([each], []) for each in tree.body]
    codes = [compile(each, file, "exec") for each in (tree, *alone)]
    for each in codes:
        codes += filter(inspect.iscode, each.co_consts)
    return tree, codes


def run_again(block, visitor, names, lesson):
    """Run the definitions of a block's file a second time; return forward and backward.

    visitor: a NodeTransformer that changes them; names: the global names that they get; lesson:
    functions of the layers and of the transformer, loaded again, by name.
    """
    tree = ast.parse(block.texts[block.file])
    kinds = ast.Import | ast.ImportFrom | ast.FunctionDef
    tree.body = [node for node in tree.body if isinstance(node, kinds)]
    tree = ast.fix_missing_locations(visitor.visit(tree))
    there, originals = {**block.forward.__globals__, **names}, vars(layers) | vars(transformer)
    exec(compile(tree, block.file, "exec"), there)
    for name, value in there.items():
        if isinstance(value, FunctionType) and originals.get(value.__name__) is value:
            there[name] = lesson[value.__name__]
    functions = [there.get(each.__name__) for each in (block.forward, block.backward)]
    if [*map(place, functions)] != [place(block.forward), place(block.backward)]:
        raise UserError(
            f"forward and backward of {block} must be functions of one file, which runs again for "
            "XLA"
        )
    return functions


def place(function):
    """Return the file and the line of a function; None for anything else."""
    code = getattr(function, "__code__", None)
    return code and (code.co_filename, code.co_firstlineno)


@functools.lru_cache(64)
def digest(code):
    """Return a digest of a function's code, without comments and docstring; None without source."""
    tree = tree_of(code)
    if tree is None:
        return None
    body = tree.body[ast.get_docstring(tree) is not None :]
    return hashlib.sha256(ast.unparse([tree.args, *body]).encode()).hexdigest()[:12]


def edited_of(*names):
    """Return the functions of these that were edited since their replacements were tested."""
    functions = vars(layers) | vars(transformer)
    return [name for name in names if digest(functions[name].__code__) != TESTED[name]]


def as_tested(*names):
    """Return whether no function of these was edited; print which ones were."""
    edited = edited_of(*names)
    for name in edited:
        say_once(f"{name} was edited, so its own lines run instead of a faster version of them")
    return not edited
