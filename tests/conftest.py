"""What every test runs with."""

import hashlib
import os
import re
import signal
import tracemalloc
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.helpers")

TEXT = (
    "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer\n" * 12
)

TINY = (
    "--n-layer 1 --n-head 2 --n-embd 8 --block-size 8 --batch-size 2 --threads 1 "
    "--warmup-iters 2 --lr-decay-iters 20 --eval-iters 2 --log-interval 1"
).split()


def pytest_sessionfinish(session):
    """With NPGPT_MAY_SKIP, a regular expression, the run fails if a test is skipped for a reason
    that it does not find.
    """
    may_skip = os.environ.get("NPGPT_MAY_SKIP")
    # None in a worker of xdist.
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if may_skip is None or reporter is None:
        return
    reasons = {report.longrepr[2] for report in reporter.stats.get("skipped", ())}
    for reason in sorted(reason for reason in reasons if not re.search(may_skip, reason)):
        reporter.write_line(f"\nmust not be skipped here: {reason}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def traced(function):
    """Return function(), and the most bytes that were allocated at once during the call."""
    tracemalloc.start()
    try:
        return function(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def ctrl_c():
    """Let Ctrl-C and SIGHUP do what they do in the foreground, also in processes of a test.

    Background jobs ignore the one, and those of nohup the other.
    """
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def gpt2():
    from npgpt.data.tokenizers import GPT2Tokenizer

    cached = hashlib.sha1(
        b"https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"
    ).hexdigest()
    if not Path(os.environ.get("TIKTOKEN_CACHE_DIR", ""), cached).exists():
        pytest.skip(
            "GPT-2's vocabulary is missing: set TIKTOKEN_CACHE_DIR to the folder that has it"
        )
    return GPT2Tokenizer()


@pytest.fixture
def text_file(tmp_path):
    """A text of a thousand characters."""
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def npgpt(capsys, text_file, tmp_path, monkeypatch):
    """Run a command in an empty folder: npgpt("eval out --split", "val") -> exit code, standard
    output, standard error. The first argument is divided into words.
    """
    from npgpt.cli.main import main  # here, because it imports everything
    from npgpt.errors import say_once

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NPGPT_DATA_DIR", raising=False)
    monkeypatch.setattr("npgpt.cli.train.draw_if_possible", lambda out_dir: "")  # 0.3 s each
    monkeypatch.setattr("npgpt.errors.quiet", False)  # as it is after the test, whatever -q did

    def run(command="", *arguments):
        say_once.cache_clear()  # as a new process
        try:
            code = main([*command.split(), *map(str, arguments)])
        except SystemExit as exit:  # --help and --version
            code = exit.code
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def train(npgpt, text_file):
    """Train a tiny model on the text: train("--max-iters 10") -> exit code, standard output,
    standard error.
    """

    def run(flags="", *arguments):
        arguments = [*flags.split(), *arguments]
        corpus = [] if "--corpus" in arguments else ["--corpus", text_file]
        return npgpt("train", *corpus, *TINY, *arguments)

    return run
