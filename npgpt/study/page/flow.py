"""The flow of gradients: each use of a variable in the forward contributes to its gradient in the backward.

The comments of a backward tell which lines belong together: the lines that undo a line of the forward are below a
comment that quotes it.
"""

import ast
import itertools
import re

from npgpt.study.gradcheck.check import gradient_names
from npgpt.study.gradcheck.source import assigned_names, parsed, read_source


class Flow:
    """The lines of a pair of functions, and which line of the backward undoes which line of the forward.

    quotes: (line of a comment of the backward, line of the forward that it quotes), in the backward's order.
    """

    def __init__(self, forward, backward):
        self.forward, self.backward = assignments(forward), assignments(backward)
        self.source = read_source(backward)
        self.quotes = quotes(read_source(forward), self.source)

    def undone(self, line):
        """Return the forward's line that a line of the backward undoes, or None."""
        return next((quoted for comment, quoted in reversed(self.quotes) if comment < line), None)

    def undoing(self, line):
        """Return the lines of the backward that undo a line of the forward, a range.

        A comment for several lines ("in one step") quotes the last of them.
        """
        begin = min((quote for quote in self.quotes if quote[1] >= line), key=lambda quote: quote[1], default=None)
        if begin is None:
            return range(0)
        end = min((comment for comment, _ in self.quotes if comment > begin[0]),
                  default=self.source.first + len(self.source.lines))
        return range(begin[0], end)

    def uses(self, variable, line, gradient_line):
        """Return [(line, backward line, name or None), …] for each use of a variable that `line` assigns.

        name: of the contribution in the backward's line, a term of the gradient's sum, or the gradient itself.
        gradient_line: the backward's line with the whole gradient.
        """
        found = []
        for node in self.forward:
            if node.lineno > line:
                if reads(node, variable):
                    found.append((node.lineno, *self.share(variable, node, gradient_line)))
                if variable in assigned_names(node):
                    break
        return found

    def share(self, variable, use, gradient_line):
        """Return (backward line, name or None) of one use's contribution to the gradient."""
        names, undoing = gradient_names(variable), self.undoing(use.lineno)
        for total in self.backward:
            is_sum = isinstance(total.value, ast.BinOp) and isinstance(total.value.op, ast.Add)
            if is_sum and not {*names}.isdisjoint(assigned_names(total)):
                terms = {node.id for node in ast.walk(total.value) if isinstance(node, ast.Name)}
                passed_on = terms & {f"d{name}" for name in assigned_names(use)}
                if passed_on:
                    return total.lineno, passed_on.pop()
                for node in self.backward:
                    made = terms.intersection(assigned_names(node))
                    if made and node.lineno in undoing:
                        return node.lineno, made.pop()
        line = gradient_line
        if line not in undoing:
            line = next((node.lineno for node in self.backward
                         if node.lineno in undoing and not {*names}.isdisjoint(assigned_names(node))), line)
        statement = self.source.statement_at(line)
        return line, next((name for name in names if statement and re.search(rf"\b{name}\b", statement.text)), None)


def assignments(function):
    """Return the assignments of a function, in order."""
    nodes = [node for node in ast.walk(parsed(function)) if isinstance(node, ast.Assign)]
    return sorted(nodes, key=lambda node: node.lineno)


def quotes(forward, backward):
    """Return [(line of a comment of the backward, line of the forward that it quotes), …], from two `Source`s.

    A comment quotes a line if it begins with it. Of several such comments in a row only the last one counts.
    """
    code = {each.first: re.sub(r"\s+# .*", "", forward.lines[each.first - forward.first]).strip()
            for each in forward.statements if each.targets}
    found = []
    for number, text in enumerate(backward.lines, backward.first):
        if not text.strip().startswith("# "):
            continue
        comment = text.strip()[2:].strip()
        line = max((line for line in code if comment.startswith(code[line])), key=lambda line: len(code[line]),
                   default=None)
        if found and found[-1][0] == number - 1:        # lines undone in one step
            found.pop()
        if line:
            found.append((number, line))
    return found


def assigned_line(name, source):
    """Return the line of the last statement that assigns a name, or None."""
    return next((each.first for each in reversed(source.statements) if name in each.targets), None)


def reads(node, variable):
    """Whether an assignment reads the values of a variable. `p["ln_1"]` reads "ln_1.weight"."""
    return any(isinstance(each, ast.Name) and each.id == variable
               or (keys := parameter_keys(each)) and variable.split(".")[:len(keys)] == keys
               for each in valued(node.value))


def valued(node):
    """Yield the parts of an expression whose values matter: not x in `x.shape` or `len(x)`."""
    match node:
        case (ast.Attribute(attr="shape" | "dtype") | ast.keyword(arg="like")
              | ast.Call(func=ast.Name("len") | ast.Attribute(attr="full_like"))):
            return
    yield node
    if not parameter_keys(node):
        for part in ast.iter_child_nodes(node):
            yield from valued(part)


def parameter_keys(node):
    """["attn", "c_attn"] of `p["attn"]["c_attn"]`, ["h"] of `p["h"][i]`, [] of any other expression."""
    keys = []
    while isinstance(node, ast.Subscript):
        keys.insert(0, node.slice)
        node = node.value
    if not (isinstance(node, ast.Name) and node.id == "p"):
        return []
    return [key.value for key in itertools.takewhile(lambda key: isinstance(key, ast.Constant), keys)]
