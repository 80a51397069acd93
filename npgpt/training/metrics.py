"""metrics.jsonl: one JSON object a line, what a run measured as it went."""

import json
import os
from pathlib import Path

from npgpt.checks import is_real
from npgpt.errors import UserError
from npgpt.files import open_regular, parse_json, write_atomically

METRICS_FILE = "metrics.jsonl"


def append_metrics(out_dir, record):
    """Add one record (a dict with a "step") to the end of the file."""
    path = Path(out_dir) / METRICS_FILE
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}): make room, and continue with --resume"
                        ) from None


def write_metrics(out_dir, records):
    """Begin the file anew, with these records."""
    path = Path(out_dir) / METRICS_FILE
    if path.is_symlink():       # in a run that came from elsewhere: where it leads to is not ours to write
        path.unlink()
    write_atomically(path, "".join(json.dumps(each) + "\n" for each in records).encode())


def read_metrics(out_dir):
    """All records, a list of dicts. A line that is none, cut off by a kill or damaged, is left out: a log stops nobody.

    Raises UserError where there is no such file.
    """
    path = Path(out_dir) / METRICS_FILE
    try:
        with open_regular(path) as file:
            return [record for line in file if (record := read_record(line)) is not None]
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): is {out_dir} the folder of a run?") from None


def read_record(line):
    """The record in a line: a dict of finite numbers, with a step; None where it is none."""
    try:
        record = parse_json(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(record, dict) and isinstance(record.get("step"), int) and all(map(is_real, record.values()))
    return record if whole and record["step"] >= 0 else None


def drop_metrics_after(out_dir, step):
    """Forget what was measured after a checkpoint: the resumed run measures it again."""
    there = os.path.lexists(Path(out_dir) / METRICS_FILE)
    write_metrics(out_dir, [record for record in read_metrics(out_dir) if record["step"] <= step] if there else [])
