"""`npgpt exercise`: what it writes, what `check` says of good and bad files, hints, bugs and the progress."""

import ast
import json
import os
import time
from pathlib import Path

import pytest

from npgpt.study.bugs import LAYERS, bug_statement, bug_text, with_bug
from npgpt.study.exercise import BLANKS, LEVELS, exercise_lesson, level_text, read_exercise
from npgpt.study.hints import RULES, hint, package_statements
from npgpt.study.judge import judge, read_answer
from npgpt.study.source import read_source
from tests.cli.test_train import refused
from tests.study.solutions import function_of, solved

LINEAR = exercise_lesson("linear")


def line_with(text, words):
    """The number of the only line that holds these words."""
    [number] = [i for i, line in enumerate(text.split("\n"), 1) if words in line]
    return number


@pytest.mark.parametrize("layer", BLANKS)
def test_files_leave_out_what_their_level_says_and_no_answer_stands_above_it(layer):
    lesson = exercise_lesson(layer)
    backward = "\n".join(read_source(lesson.backward).lines)
    forward = "\n".join(read_source(lesson.forward).lines)
    missing = []
    for level in LEVELS:
        text = level_text(lesson, level, "file.py")
        assert text.startswith(f"# npgpt exercise: {layer}, level {level}\n") and forward in text
        assert "npgpt exercise check file.py --hint" in text and "@rowwise" not in text and "import rowwise" not in text
        written = text[text.index(f"def {lesson.backward.__name__}("):]
        kept = [line for line in written.split("\n") if line in backward.split("\n")]
        assert written.count(" ...") - backward.count(" ...") >= 1
        missing.append(len(backward.split("\n")) - len(kept))
        comments = [line for line in backward.split("\n") if line.strip().startswith("# ")]
        assert all((line in written) == (level < 3) for line in comments)
    assert missing[0] <= missing[1] <= missing[2]
    body = ast.parse(level_text(lesson, 3, "file.py")).body[-1].body
    docstring = ast.get_docstring(ast.parse(backward).body[0])
    assert len(body) == 2 and docstring.startswith(body[0].value.value.split("\n")[0])
    assert not any(line in written for line in backward.split("\n") if "->" in line and "    " * 2 in line)


def test_level_1_of_linear_looks_as_expected():
    text = level_text(LINEAR, 1, "file.py")
    assert "    dweight = ...                                               # (n_in, n_out)\n" in text
    assert "    drows = dy_rows @ weight.T " in text and "    # y_rows = rows @ weight + bias\n" in text
    assert "import numpy as np\n\nfrom npgpt.engine.sums import column_sum\n\n\ndef linear_forward" in text
    text = level_text(exercise_lesson("gelu_tanh"), 3, "file.py")
    assert "CUBIC = 0.044715 * SQRT_2_OVER_PI\n" in text and "import math\n" in text


def test_from_the_list_to_the_solution_and_back(npgpt):
    assert npgpt("exercise")[1].split("\n")[1].split() == ["linear", "-", "-", "-", "-"]
    code, out, _ = npgpt("exercise", "linear")
    file = Path("exercises/linear-level1.py")
    assert code == 0 and file.exists() and f"npgpt exercise check {file}" in out
    number = line_with(file.read_text(), "dweight = ...")
    refused(npgpt("exercise", "linear"), "exercises/linear-level1.py is there already")
    refused(npgpt("exercise", "check", file), f"{file}, line {number}: `...` is still to be written")
    wrong = file.read_text().replace("dweight = ...", "dweight = dy_rows.T @ rows")
    file.write_text(wrong)
    code, out, _ = npgpt("exercise", "check", file)
    assert code == 1 and f"line {number}   dweight   WRONG\n" in out
    assert "its shape is (5, 6), not (6, 5): it is transposed" in out
    assert f"the first mistake shows at line {number}" in out and out.count(" ok ") >= 4
    assert npgpt("exercise")[1].split("\n")[1].split()[1] == "tried"
    file.write_text(solved(LINEAR, 1))
    code, out, _ = npgpt("exercise", "check", file)
    assert code == 0 and "right: every gradient" in out and "WRONG" not in out
    lines = [int(line.split()[1]) for line in out.split("\n") if line.startswith("  line ")]
    assert lines == sorted(lines) and len(lines) == 5 and out.count("dy_rows ") == 1 and " dy " not in out
    solved_at = json.loads(Path("exercises/progress.json").read_text())["exercises"]["linear level 1"]["solved"]
    assert npgpt("exercise")[1].split("\n")[1].split()[1] == solved_at
    file.write_text(wrong)
    progress = Path("exercises/progress.json")
    progress.write_text(progress.read_text().replace(solved_at, "2025-01-02"))
    assert npgpt("exercise", "check", file)[0] == 1 and npgpt("exercise")[1].count("2025-01-02") == 1    # kept
    file.write_text(solved(LINEAR, 1).replace("x.shape[-1])  ", "x[..., 0].size * 0 + x.shape[-1])  "))     # no blank
    assert npgpt("exercise", "check", file)[0] == 0 and npgpt("exercise")[1].count("2025-01-02") == 1
    assert sorted(os.listdir("exercises")) == ["linear-level1.py", "progress.json"]


def test_hints_come_one_at_a_time_and_are_remembered(npgpt):
    npgpt("exercise", "linear", "--level", "2")
    file = Path("exercises/linear-level2.py")
    hints = [npgpt("exercise", "check", file, "--hint") for _ in range(4)]
    assert [code for code, _, _ in hints] == [0] * 4
    assert hints[0][1] == "hint 1 of 3: look at the forward's line: y_rows = rows @ weight + bias\n"
    assert hints[1][1] == f"hint 2 of 3: {RULES['linear']['dbias']}\n"
    assert hints[2] == hints[3] and "column_sum(dy_rows) if has_bias else None" in hints[2][1]
    file.write_text(file.read_text().replace("dbias = ...", "dbias = column_sum(dy_rows)"))
    assert npgpt("exercise", "check", file, "--hint")[1].startswith("hint 1 of 3")       # on the next line
    file.write_text(solved(LINEAR, 2).replace("dy_rows @ weight.T", "-(dy_rows @ weight.T)"))
    for _ in range(3):
        out = npgpt("exercise", "check", file, "--hint")[1]         # on the wrong line, though nothing is missing
    assert "drows = dy_rows @ weight.T" in out
    assert "2 hints" not in npgpt("exercise")[1] and "tried, 7 hints" in npgpt("exercise")[1]
    file.write_text(solved(LINEAR, 2))
    assert "nothing to hint at" in npgpt("exercise", "check", file, "--hint")[1]
    npgpt("exercise", "embedding", "--level", "3")
    file = Path("exercises/embedding-level3.py")
    assert "x = token + position" in npgpt("exercise", "check", file, "--hint")[1]
    file.write_text(solved(exercise_lesson("embedding"), 3).replace("= dposition", "= 2.0 * dposition"))
    for _ in range(3):
        out = npgpt("exercise", "check", file, "--hint")[1]         # on the line that fills the array, not makes it
    assert "dwpe[:T] = dposition" in out


def test_every_line_that_may_be_left_out_has_a_rule():
    for layer, (one, some) in BLANKS.items():
        keys = dict(package_statements(exercise_lesson(layer))).keys()
        assert {*one} <= {*some} <= RULES[layer].keys() <= keys, layer
        assert all(hint(exercise_lesson(layer), key, number) for key in keys for number in range(3))


@pytest.fixture
def linear(npgpt):
    """Check a changed solution of linear: linear("return", "return None, ") -> exit code, output, errors."""
    def run(old, new, *flags):
        text = solved(LINEAR, 3)
        assert old in text
        Path("mine.py").write_text(text.replace(old, new))
        return npgpt("exercise", "check", "mine.py", *flags)

    return run


RETURN = "    return dx, dweight, dbias"
RETURN_LINE = line_with(solved(LINEAR, 3), RETURN)


@pytest.mark.parametrize(("old", "new", "says"), [
    ("    x, weight, has_bias = cache", "    x, weight, has_bias = = cache", "mine.py, line {0}: invalid syntax"),
    ("def linear_backward", "def my_backward", "mine.py has no function linear_backward"),
    ("def linear_backward(dy, cache, dweight=None)", "def linear_backward(dy)",
     "the function must be linear_backward(dy, cache, dweight=None), not linear_backward(dy)"),
    (RETURN, "    return ...", "line {0}: `...` is still to be written"),
    (RETURN, "    pass", "linear_backward returned None, not 3 (dx, dweight, dbias)"),
    (RETURN, "    return dx", "line {0}: linear_backward returned a ndarray, not 3 (dx, dweight, dbias)"),
    (RETURN, "    return dx, dweight", "line {0}: linear_backward returned 2 results, not 3 (dx, dweight, dbias)"),
    (RETURN, "    return dx, dweight, [1.0]", "line {0}: dbias is a list, not an array of floating numbers"),
    (RETURN, "    return dx, dweight, None", "line {0}: dbias is a NoneType"),
    (RETURN, "    return dx, dweight, dbias > 0", "line {0}: dbias is an array of bool"),
    (RETURN, "    return dx, dweight, dbias[1:]", "dbias has shape (4,), but bias has shape (5,)"),
    (RETURN, "    return dx, dweight @ dx, dbias", "line {0}: ValueError: matmul"),
    (RETURN, "    return nothing", "line {0}: NameError: name 'nothing' is not defined"),
    (RETURN, "    raise SystemExit(0)", "line {0}: SystemExit: 0"),
    (RETURN, "    return linear_backward(dy, cache)", "RecursionError: maximum recursion depth"),
    (RETURN, "    return np.zeros(6 << 27)", "line {0}: MemoryError: Unable to allocate 6.00 GiB"),
    (RETURN, "    import os; os._exit(3)", "mine.py: the code ended its process (exit code 3)"),
    (RETURN, "    import os; os.kill(os.getpid(), 9)", "mine.py: the code ended its process (signal 9)"),
    ("import numpy as np", "import numpy as np\n1 / 0", "line 12: ZeroDivisionError"),
    ("# npgpt exercise: linear, level 3", "", "mine.py is not an exercise file"),
    ("# npgpt exercise: linear", "# npgpt exercise: gpt", "mine.py is not an exercise file"),
    ("(n_in", "\0", "null bytes"),
])
def test_bad_solutions_are_refused_in_one_line(linear, old, new, says):
    line = next((i for i, text in enumerate(solved(LINEAR, 3).split("\n"), 1) if old in text), 0)
    refused(linear(old, new), says.format(line))


def test_files_that_are_none_and_flags_that_do_not_fit(npgpt, tmp_path):
    refused(npgpt("exercise", "check", "nowhere.py"), "nowhere.py: No such file or directory")
    refused(npgpt("exercise", "check", tmp_path), "is not a regular file")
    (tmp_path / "latin.py").write_bytes(b"# npgpt exercise: linear, level 1\n# \xe9\n")
    refused(npgpt("exercise", "check", "latin.py"), "latin.py, line 2: not UTF-8 text")
    refused(npgpt("exercise", "check"), "give the file to check")
    refused(npgpt("exercise", "relu"), 'there is no layer "relu"', "layernorm")
    refused(npgpt("exercise", "gpt"), "there is no exercise on gpt")
    refused(npgpt("exercise", "all"), "choose one of linear")
    refused(npgpt("exercise", "linear", "--level", "4"), "--level")
    refused(npgpt("exercise", "linear", "mlp"), 'not "mlp"')
    refused(npgpt("exercise", "linear", "--seed", "1"), "--seed goes with bug only")
    refused(npgpt("exercise", "--level", "1"), "--level goes with a LAYER only")
    refused(npgpt("exercise", "bug", "dropout"), "one line")
    refused(npgpt("exercise", "bug", "--seed", "-1"), "--seed must not be negative")
    npgpt("exercise", "linear")
    for flags, says in ((["--line", "3"], "has no bug"), (["--line", "3", "--hint"], "--line and --hint"),
                        (["--time-limit", "nan"], "--time-limit must be a positive")):
        refused(npgpt("exercise", "check", "exercises/linear-level1.py", *flags), says)


def test_a_missing_package_is_told_in_one_line(npgpt, tmp_path, monkeypatch):
    (tmp_path / "without").mkdir()
    (tmp_path / "without/scipy.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path / "without")
    Path("mine.py").write_text(solved(exercise_lesson("gelu_exact"), 1))
    refused(npgpt("exercise", "check", "mine.py"), 'mine.py: activation "gelu" needs SciPy')


def test_an_endless_loop_ends_and_what_it_has_printed_is_shown(linear):
    start = time.perf_counter()
    code, _, err = linear(RETURN, "    print('so far')\n    while True:\n        pass\n", "--time-limit", "2.5")
    assert code == 2 and time.perf_counter() - start < 6
    assert err.startswith("so far\nnpgpt: mine.py: linear_backward has not ended within 2.5 seconds")


def test_processes_that_a_right_solution_leaves_behind_are_ended(linear):
    leave = f"""    import os, subprocess, sys
    try:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        open("child", "w").write(str(child.pid))
    except BlockingIOError:
        pass
{RETURN}"""
    code, out, _ = linear(RETURN, leave)
    assert code == 0 and "right: every gradient" in out
    if os.getuid() == 0:        # only root may start one
        assert not Path(f"/proc/{Path('child').read_text()}").exists()
    else:
        assert not Path("child").exists()


@pytest.mark.parametrize(("code", "says"), [
    ("open('large', 'wb').write(bytes(17 << 20))", "OSError: [Errno 27] File too large"),
    ("files = [open('many' + str(i), 'w') for i in range(100)]", "OSError: [Errno 24] Too many open files"),
    ("raise ValueError('\\x1b[31m' + 'a' * (20 << 20))", "ValueError: \\x1b[31maaa"),
    ("raise type('\\x1b[31m', (Exception,), {})('text')", "\\x1b[31m: text"),
    ("raise type('Mine', (Exception,), {'__str__': lambda self: 1 / 0})", "line {0}: Mine"),
    ("raise ValueError('first\\nsecond')", "ValueError: first"),
])
def test_what_breaks_a_limit_or_is_not_fit_to_be_shown_is_one_short_line(linear, code, says):
    result = linear(RETURN, f"    {code}\n{RETURN}")
    refused(result, says.format(RETURN_LINE))
    assert len(result[2]) < 300 and "\x1b" not in result[2] and "second" not in result[2]


def test_what_a_solution_prints_is_shown_up_to_a_limit_and_without_escape_codes(linear):
    code, out, err = linear(RETURN, "    print('\\x1b[31m\\tred\\n' + 'a' * (8 << 20))\n" + RETURN)
    assert code == 0 and "right: every gradient" in out
    assert err.startswith("\\x1b[31m\tred\naaa") and "\x1b" not in err and len(err) < 70000
    assert err.endswith("aaa\n[more output left out]\n")


GOOD_ANSWER = {"lines": [{"variable": "x", "line": 3, "verdict": "ok", "relative": 1e-12, "diagnosis": None}],
               "notes": ["\x1b[31m"], "results": ["x"], "differs": []}


def with_field(name, value):
    return json.dumps({**GOOD_ANSWER, name: value})


def with_line(name, value):
    return with_field("lines", [{**GOOD_ANSWER["lines"][0], name: value}])


BAD_ANSWERS = [
    "", "5", "null", "{}", "[]", '"error"', '["error"]', "[" * 100000, "\udcff", "1" * 5000, "{} {}",
    '{"error": "text"}', '{"error": 5, "line": 3}', '{"error": "text", "line": "3"}', '{"error": "text", "line": NaN}',
    with_field("lines", []), with_field("lines", [5]), with_field("lines", [{}]), with_field("lines", None),
    with_field("notes", "text"), with_field("notes", [None]), with_field("results", {}), with_field("more", 5),
    with_line("variable", 5), with_line("line", True), with_line("line", 1.5), with_line("verdict", None),
    with_line("relative", float("inf")), with_line("relative", float("nan")), with_line("relative", "0"),
]


@pytest.mark.parametrize("answer", BAD_ANSWERS, ids=range(len(BAD_ANSWERS)))
def test_answers_that_are_none_are_noticed(answer):
    report = read_answer(json.dumps(GOOD_ANSWER).encode())
    assert not report.right and report.lines[0].line == 3 and report.notes == ["\\x1b[31m"]
    with pytest.raises((ValueError, RecursionError)):
        read_answer(answer.encode(errors="surrogateescape"))


@pytest.mark.parametrize("answer", ["b'5\\n'", "b'{}\\n'", "b'[' * 100000", "bytes(50 << 20)"])
def test_who_writes_into_the_answer_is_told_so_in_one_line(linear, answer):
    forge = f"""    for number in range(3, 21):
        try:
            open(number, "wb", closefd=False).write({answer})
        except OSError:
            pass
"""
    refused(linear(RETURN, forge + RETURN), "mine.py: the code ended or disturbed its process before it could be")


def test_a_solution_may_print_and_does_not_reach_this_process(linear):
    code, out, _ = linear(RETURN, "    import npgpt.layers.linear as own\n    own.linear_backward = own.np = None\n"
                                  "    print('{\"error\": 1}')\n" + RETURN)
    assert code == 0 and "error\": 1" not in out
    from npgpt.layers import linear as module
    assert module.linear_backward is LINEAR.backward


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"exercises": {"linear level 1": 3}}', "\udcff", "[" * 100000,
                                     '{"exercises": {"linear level 1": {"tries": 1, "hints": {"dx": -1}}}}'])
def test_damaged_progress_is_told_in_one_line_and_kept(npgpt, content):
    npgpt("exercise", "linear")
    data = content.encode(errors="surrogateescape")
    Path("exercises/progress.json").write_bytes(data)
    refused(npgpt("exercise"), "exercises/progress.json is damaged", "delete it")
    refused(npgpt("exercise", "check", "exercises/linear-level1.py", "--hint"), "exercises/progress.json is damaged")
    assert Path("exercises/progress.json").read_bytes() == data


@pytest.mark.parametrize("layer", LAYERS)
def test_planted_bugs_are_bugs_and_their_line_is_known(layer, tmp_path):
    lesson = exercise_lesson(layer)
    right = list(read_source(lesson.backward).lines)
    places = set()
    for seed in range(6):
        lines = with_bug(lesson, seed)
        [place] = [i for i, (old, new) in enumerate(zip(right, lines, strict=True)) if old != new]
        places.add(place)
        assert lines == with_bug(lesson, seed)
        file = tmp_path / f"bug{seed}.py"
        text = bug_text(lesson, seed, file)
        backward = function_of(text, lesson, file)
        report = judge(layer, backward, file)
        assert not report.right and report.first is not None
        first, last, wrong, answer = bug_statement(read_exercise(file))
        at = text.split("\n").index(lines[place]) + 1
        assert first <= at <= last and wrong != answer
        header = text.split("\ndef ")[0].split("import")[0]
        assert not {str(number) for number in range(first, last + 1)} & set(header.split())
        comment = right[place].find("  # ")     # the comment has not moved
        assert comment < 0 or lines[place][comment:] == right[place][comment:]
        file.write_text(text.replace("\n".join(lines), "\n".join(right)))
        assert bug_statement(read_exercise(file)) is None
    assert len(places) > 1 or layer in ("head", "mlp")


def test_a_bug_is_found_by_its_line_or_mended(npgpt):
    code, out, _ = npgpt("exercise", "bug", "layernorm", "--seed", "2")
    file = Path("exercises/layernorm-bug2.py")
    assert code == 0 and str(file) in out
    text = file.read_text()
    first, last, wrong, right = bug_statement(read_exercise(file))
    assert last < text.count("\n")
    for number in range(1, text.count("\n") + 1):
        code, out, _ = npgpt("exercise", "check", file, "--line", number)
        assert (code == 0) == (first <= number <= last) == out.startswith("yes"), number
        assert right in out if code == 0 else right not in out
    code, out, _ = npgpt("exercise", "check", file)
    assert code == 1 and "the bug is still there" in out and f"line {first}" not in out
    assert npgpt("exercise", "check", file, "--hint")[1].startswith("hint 1 of 3: look at")
    lines = text.split("\n")
    lines[first - 1:last] = [f"    # mended\n    {right}"]
    file.write_text("\n".join(lines))
    code, out, _ = npgpt("exercise", "check", file)
    assert code == 0 and "mended" in out
    refused(npgpt("exercise", "check", file, "--line", first), "no line differs")
    assert npgpt("exercise")[1].split("\n")[4].split()[-1] == "1"
    assert npgpt("exercise", "bug")[0] == 0
