"""metrics.jsonl, the log of a training run: one JSON object per line."""

import contextlib
import json
import os
from pathlib import Path

from npgpt.checks import is_real
from npgpt.errors import UserError
from npgpt.files import append, open_regular, parse_json, remedy, write_atomically

METRICS_FILE = "metrics.jsonl"


def append_metrics(out_dir: str | os.PathLike, record: dict) -> None:
    """Append one record, a dict with a "step". Raises UserError if the file cannot be written."""
    with writing(out_dir) as path:
        append(path, (json.dumps(record) + "\n").encode())


@contextlib.contextmanager
def writing(out_dir):
    """Yield the path of the file, and turn an OSError into a UserError."""
    path = Path(out_dir) / METRICS_FILE
    try:
        yield path
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}): {remedy(error, out_dir)} and continue with "
                        "--resume") from None


def read_metrics(out_dir: str | os.PathLike) -> list[dict]:
    """Return the records, without lines that a kill or damage spoiled. Raises UserError if the file is unreadable."""
    path = Path(out_dir) / METRICS_FILE
    try:
        with open_regular(path) as file:
            return [record for line in file if (record := read_record(line)) is not None]
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): is {out_dir} the folder of a run?") from None


def read_record(line):
    """Return the record in a line, a dict of finite numbers with a step; None if the line is invalid."""
    try:
        record = parse_json(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(record, dict) and isinstance(record.get("step"), int) and all(map(is_real, record.values()))
    return record if whole and record["step"] >= 0 else None


def drop_metrics_after(out_dir: str | os.PathLike, step: int) -> None:
    """Delete the records after a step, because the resumed run repeats them; -1: all. Raises as `append_metrics`."""
    with writing(out_dir) as path:
        records = read_metrics(out_dir) if step >= 0 and path.is_file() else []
        kept = [json.dumps(record) + "\n" for record in records if record["step"] <= step]
        write_atomically(path, "".join(kept).encode())
