"""Fuse lesson lines for a GPU: successive elementwise lines become one kernel, by `cupy.fuse`.

Through CuPy each operator of a line is a kernel of its own, which reads and writes whole arrays. A fused kernel gives
all its results one shape, that of its arguments broadcast together. So only lines with results of one shape are fused.
"""

import ast
import contextlib
import copy
import functools
import itertools

import numpy as np

from npgpt.engine.statements import Part, compiled, is_simple, names_in, reads, stored, with_names

FUNCTIONS = {"exp", "log", "sqrt", "square", "tanh", "abs", "maximum", "minimum"}


@functools.cache
def fuse_lines(function, fuse, **functions):
    """Return a function with the same arguments and results, whose successive elementwise lines are fused.

    fuse: `cupy.fuse`; functions: what names are in a kernel, np=cupy and erf=cupyx.scipy.special.erf. Lines that cannot
    be fused run as they stand. If the function gets other code, that is fused.
    """
    return compiled(function, (), functools.partial(is_simple, functions=FUNCTIONS),
                    lambda *part: Fused(*part, fuse, functions), functools.partial(fuse_lines, fuse=fuse, **functions))


class Numbers(ast.NodeTransformer):
    """Moves operations without arrays out of a kernel: CuPy would repeat them for each element, some in float16."""

    def __init__(self, arrays, used):
        self.arrays, self.found = arrays, {}
        self.free = (name for i in itertools.count() if (name := f"number_{i}") not in used)

    def visit(self, node):
        names = names_in([node], ast.Load)
        if not isinstance(node, ast.BinOp | ast.UnaryOp | ast.Call) or not names or names & self.arrays:
            return self.generic_visit(node)
        name = next(self.free)
        self.found[name] = ast.unparse(node)
        return ast.Name(name, ast.Load())


class Fused(Part):
    """Elementwise lines. how: `cupy.fuse`, and what names are in a kernel."""

    refusal = TypeError, ValueError, AttributeError, NotImplementedError        # what CuPy raises before a kernel runs

    def build(self, values):
        """Return the function for such values: a kernel of the first lines, or one line as it stands; then the rest."""
        labels = {0: 0, 1: 1}
        before = {name: np.ones([labels.setdefault(size, len(labels)) for size in value.shape], value.dtype)[()]
                  if hasattr(value, "shape") else value for name, value in values.items()}
        n, after = self.first(before)
        lines, rest = self.lines[:max(n, 1)], self.lines[max(n, 1):]
        if sum(isinstance(each, ast.operator | ast.Call) for line in lines[:n] for each in ast.walk(line)) < 2:
            return self.followed(lines, rest, {})
        used = stored(self.lines) | {*self.names}
        made_name, kernel_name = (name + "_" * max(map(len, used)) for name in ("made", "kernel"))      # no user's
        arrays_of = {name for name, value in before.items() if hasattr(value, "shape")}
        numbers = Numbers(stored(lines) | arrays_of, used)
        fused = [numbers.visit(copy.deepcopy(line)) for line in lines]
        arrays, made, results = {id(value): name for name, value in before.items()}, [], {}
        for name in sorted(stored(lines) & (reads(rest) | {*self.results})):
            result = id(after[name])            # it may be an argument: `y = x`, `m *= beta1`
            if result not in arrays:
                arrays[result] = f"{made_name}[{len(made)}]"
                made.append(name)
            results[name] = arrays[result]
        given = {name: before[name] for name in reads(fused) & {*before}}
        inputs = sorted({*numbers.found} | {name for name, value in given.items()
                                            if hasattr(value, "shape") or type(value) in (int, float)})
        tree = ast.parse(f"def fused_{'_'.join(results)}({', '.join(inputs)}):\n"
                         f"    return {''.join(f'{each}, ' for each in made)}").body[0]
        tree.body[:0] = fused
        fuse, functions = self.how
        kernel = fuse(with_names(tree, self.module, {each: given[each] for each in given.keys() - inputs} | functions,
                                 self.file))
        given_to = ", ".join(numbers.found.get(each, each) for each in inputs)
        body = ast.parse(f"{made_name} = {kernel_name}({given_to})\n"
                         f"[{', '.join(results)}] = [{', '.join(results.values())}]").body
        return self.followed(body, rest, {kernel_name: kernel})

    def first(self, names):
        """Return how many of the first lines have floating results of one shape, and the names after these lines.

        They compare nothing and read no other arrays, because CuPy would compute `(x > 0.0) * 0.5` in float16.
        """
        n, shapes, after, numbers = 0, set(), names, {each for each in names if not hasattr(names[each], "shape")}
        with contextlib.suppress(Exception), np.errstate(all="ignore"):
            for line in self.lines:
                names = {**after}
                exec(ast.unparse(line), self.module, names)
                made = stored([line])
                kinds = {names[each].dtype.kind for each in made | names_in([line], ast.Load)
                         if hasattr(names.get(each), "shape")}
                compares = any(isinstance(each, ast.cmpop) and not isinstance(each, ast.Is | ast.IsNot)
                               for each in ast.walk(line))
                shapes |= {names[each].shape for each in made}
                if len(shapes) > 1 or kinds != {"f"} or compares or made & numbers:
                    break
                n, after = n + 1, names
        return n, after
