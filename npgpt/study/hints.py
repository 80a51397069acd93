"""Hints, from a nudge to the answer: the forward line to look at, the rule in words, the package's own line."""

import ast

from npgpt.study.exercise import blanks_left, key_of, statements
from npgpt.study.judge import WRONG
from npgpt.study.source import read_source

LAST = 2        # the number of the last hint on a line

# layer -> key of a backward's line (see `exercise.key_of`) -> how it comes about
RULES = {
    "linear": {
        "dy_rows": "A reshape computes nothing: its gradient is the same numbers in the shape from before.",
        "dbias": "The bias was added to every row, so its gradient is the sum over all rows.",
        "dweight": "The gradient of one factor of a product is made of the other factor and the gradient of the "
                   "product. Every row used the weight, so it is summed over the rows: only one order of the two, with "
                   "one of them transposed, has the shape (n_in, n_out).",
        "drows": "The gradient of one factor of a product is made of the other factor and the gradient of the product: "
                 "every input collects from all outputs, by the weight that led there, which is the transposed matrix.",
        "dx": "A reshape computes nothing: its gradient is the same numbers in the shape from before.",
    },
    "gelu_tanh": {
        "dx_outside": "Of y = x * phi, x outside the tanh gets the gradient times the other factor.",
        "dphi": "phi gets the gradient times the other factor of the product.",
        "dinner": "The derivative of tanh is 1 - tanh^2 = (1 + tanh) (1 - tanh). With phi = (1 + tanh) / 2 that is "
                  "2 phi times 2 (1 - phi), and the 0.5 in front of the bracket halves it.",
        "dx_inside": "inner is a x + b x^3, with a = SQRT_2_OVER_PI and b = CUBIC: its derivative is a + 3 b x^2.",
        "dx": "x was used twice, outside the tanh and inside: its gradient is the sum of both.",
    },
    "gelu_exact": {
        "dx_outside": "Of y = x * phi, x outside the distribution function gets the gradient times the other factor.",
        "density": "The derivative of the normal distribution function is the normal density, "
                   "exp(-x^2 / 2) / sqrt(2 pi); 1 / sqrt(2 pi) is half of sqrt(2 / pi).",
        "dx_inside": "The chain rule: the gradient of phi, dy * x, times the derivative of phi, the density. Multiply "
                     "x by the density first: dy * x may overflow.",
        "dx": "x was used twice, outside phi and inside: its gradient is the sum of both.",
    },
    "layernorm": {
        "dbias": "The bias was added at every position: its gradient is the sum over all of them.",
        "dscaled": "A sum hands its gradient on to each term unchanged.",
        "dweight": "Of a product each factor gets the gradient times the other factor; the weight was used at every "
                   "position, so it is summed over all of them.",
        "dxhat": "Of a product each factor gets the gradient times the other factor.",
        "mean_dxhat": "A mean over the C channels of each position.",
        "mean_dxhat_xhat": "A mean over the C channels of each position, of a product.",
        "dx": "The gradient dxhat loses its mean, and xhat times the mean of dxhat * xhat, because to shift or to "
              "stretch x does not change xhat; what is left is scaled by rstd, as x was.",
    },
    "softmax_loss": {
        "dlosses": "The loss is a sum of losses times share: each of the losses gets dloss times its share.",
        "dlogits": "For one row the gradient is softmax(logits) - [i == target]: here comes the first term, the "
                   "probabilities, each times the gradient of its row's loss.",
        "at_target": "Take what stands at the target's column, as the forward took the target's logit.",
        "np.put_along_axis": "For one row the gradient is softmax(logits) - [i == target]: at the target's column one "
                             "times dlosses is still to be taken away. Write at_target - dlosses there.",
    },
    "cross_entropy": {"return": "The forward hands everything to softmax_loss_forward, and returns its cache: the "
                                "backward hands everything to its backward."},
    "embedding": {
        "dtoken": "A sum hands its gradient on to each term unchanged.",
        "dposition": "The positions' vectors were broadcast: each batch entry got the same. What was broadcast in the "
                     "forward is summed in the backward, over the batch.",
        "dwpe": "Rows that were not read get zero.",
        "dwpe[:T]": "The first T rows of the table were read, each once: they get the gradient of what was read.",
        "dwte": "Rows that were not read get zero.",
        "add_rows_by_index": "A row that was read n times gets the sum of n gradients. Adding by an index array keeps "
                             "only the last of them; add_rows_by_index(out, index, rows) adds all, with index as (N,) "
                             "and rows as (N, C).",
    },
    "head": {
        "dlogit_rows": "A reshape computes nothing: its gradient is the same numbers in the shape from before.",
        "dweight": "The gradient of one factor of a product is made of the other factor and the gradient of the "
                   "product, summed over the rows: only one order of the two, one of them transposed, has the shape "
                   "(V, C).",
        "drows": "The gradient of the product times the other factor; the weight was transposed in the forward, so "
                 "now it is not.",
        "dx": "A reshape computes nothing: its gradient is the same numbers in the shape from before.",
    },
    "dropout": {"dx": "Of a product each factor gets the gradient times the other factor; without a mask x was handed "
                      "on as it was, and so is its gradient."},
    "attention": {
        "kept": "The same line as in the forward: the cache keeps att, not kept.",
        "dkept": "Of a matrix product, the left factor gets the gradient times the right factor transposed.",
        "dv": "Of a matrix product, the right factor gets the left factor transposed times the gradient.",
        "datt": "Each weight was multiplied by the mask (where there is one), and so is its gradient.",
        "dot": "For each row the sum of datt * att, which every entry of the row loses.",
        "dmasked": "The softmax: each entry of a row gets att * (its own gradient - the sum over the row of gradient "
                   "times att).",
        "dscores": "The mask was added: a sum hands its gradient on unchanged.",
        "scaled": "The same line as in the forward.",
        "dscaled": "Of a matrix product, the left factor gets the gradient times the right factor transposed; the "
                   "right one was k transposed, so this is k.",
        "dk": "k was the right factor, transposed: the gradient transposed times the left factor, which is scaled.",
        "dq": "q was multiplied by a number, and so is its gradient.",
    },
    "self_attention": {
        "dmerged": "The last layer was linear: linear_backward gives the gradients of its input, weight and bias, from "
                   "the gradient of its output and its own cache.",
        "dmix": "merge_heads moves numbers and computes nothing. Undo it: split the channels into heads, then bring "
                "the heads' axis before the time's.",
        "dq": "tiled_attention_backward gives dq, dk and dv, one array (3, B, H, T, D).",
        "dqkv": "split_heads moves numbers and computes nothing. Undo it: bring the axes (3, B, H, T, D) into the "
                "order (B, T, 3, H, D), then make one axis of the last three.",
        "dx": "The first layer was linear: linear_backward with its own cache.",
    },
    "mlp": {
        "dactive": "The last layer was linear: linear_backward with its own cache, c_proj.",
        "dhidden": "The layer in the middle is the GELU: its backward takes the gradient of its output and its cache.",
        "dx": "The first layer was linear: linear_backward with its own cache, c_fc.",
    },
    "block": {
        "ddropped_2": "A sum hands its gradient on to each term unchanged.",
        "dthought": "dropout_backward takes the gradient of dropout's output and dropout's own cache.",
        "dnorm_2": "mlp_backward gives the gradient of its input and of its four parameters.",
        "dx_mid_normed": "layernorm_backward gives the gradient of its input and of its two parameters.",
        "dx_mid": "x_mid was used twice, by the residual stream and by the MLP's branch: its gradient is the sum of "
                  "what comes back from both.",
        "ddropped_1": "A sum hands its gradient on to each term unchanged.",
        "dattended": "dropout_backward takes the gradient of dropout's output and dropout's own cache.",
        "dnorm_1": "self_attention_backward gives the gradient of its input and of its four parameters.",
        "dx_normed": "layernorm_backward gives the gradient of its input and of its two parameters.",
        "dx": "x was used twice, by the residual stream and by attention's branch: its gradient is the sum of what "
              "comes back from both.",
    },
}
PREPARATION = "it only prepares what the next lines need: the same numbers in another shape, or what the cache holds."


def package_statements(lesson):
    """(key, statement) of each line of the package's backward, in order, without the one that unpacks the cache."""
    function = ast.parse("\n".join(read_source(lesson.backward).lines)).body[0]
    return [(key_of(each), each) for each in statements(function) if ast.unparse(each.value) != "cache"]


def unfinished_key(exercise):
    """The key of the first line of the package's backward that the learner has still to write, or None."""
    left = blanks_left(exercise)
    if not left:
        return None
    wanted = [key for key, _ in package_statements(exercise.lesson) if key in RULES[exercise.lesson.name]]
    first = key_of(left[0])
    if first in wanted:
        return first
    if exercise.what != "level 3":      # a bare `...`: the one line of this level's that assigns nothing
        return next((key for key in wanted if key in ("np.put_along_axis", "add_rows_by_index")), wanted[0])
    written = {key_of(each) for each in statements(exercise.function) if each not in left}
    return next((key for key in wanted if key not in written), wanted[-1])


def wrong_key(exercise, report):
    """The key of the line of the package's backward at which a learner's solution first goes another way."""
    wanted = package_statements(exercise.lesson)
    for key, statement in wanted:
        if names_in(statement, ast.Store) & set(report.differs):
            return key
    # Nothing that has a name differs: it is a line that fills an array, or a result without a name.
    wrong = {f"d{line.variable}" for line in report.lines if line.verdict == WRONG}
    for key, statement in reversed(wanted):
        touched = names_in(statement, ast.Store)
        if key.endswith("]") or isinstance(statement, ast.Expr):
            touched |= names_in(statement, ast.Load)
        if wrong & touched:
            return key
    return wanted[-1][0]


def names_in(statement, context):
    """The names that a statement stores (context ast.Store) or uses (ast.Load)."""
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


def hint(lesson, key, number):
    """Hint 0, 1 or 2 (`LAST`) on a line of the lesson's backward."""
    lines = read_source(lesson.backward).lines
    statement = next(statement for other, statement in package_statements(lesson) if other == key)
    if number == 0:
        quoted = [line.strip()[2:] for line in lines[:statement.lineno - 1] if line.strip().startswith("# ")]
        return f"look at the forward's line: {quoted[-1]}" if quoted else "look at what the cache holds"
    if number == 1:
        return RULES[lesson.name].get(key, PREPARATION)
    return "the package writes: " + " ".join(ast.unparse(statement).split())
