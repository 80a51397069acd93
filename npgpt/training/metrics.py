"""metrics.jsonl, the log of a training run: one JSON object per line."""

import json
from pathlib import Path

from npgpt.checks import is_real
from npgpt.files import AnyPath, check_regular, naming, open_regular, write_atomically

METRICS_FILE = "metrics.jsonl"


def append_metrics(out_dir: AnyPath, record: dict) -> None:
    """Append one record, a dict with a "step". Raises UserError if the file is not a regular one,
    OSError.
    """
    path = Path(out_dir, METRICS_FILE)
    check_regular(path)
    with naming(path), open(path, "ab") as file:
        file.write((json.dumps(record) + "\n").encode())


def read_metrics(out_dir: AnyPath) -> list[dict]:
    """Return the records, without lines that a kill spoiled. Raises as `append_metrics`."""
    with open_regular(Path(out_dir, METRICS_FILE)) as file:
        return [*filter(None, map(read_record, file))]


def read_record(line):
    """Return the record in a line, a dict of finite numbers with a step; None if the line is
    invalid.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_record = isinstance(record, dict) and isinstance(record.get("step"), int)
    return record if is_record and all(map(is_real, record.values())) else None


def drop_metrics_after(out_dir: AnyPath, step: int) -> None:
    """Delete the records after a step, because the resumed run repeats them; -1: all. Raises as
    `append_metrics`.
    """
    path = Path(out_dir, METRICS_FILE)
    records = read_metrics(out_dir) if path.is_file() else []
    kept = [json.dumps(record) + "\n" for record in records if record["step"] <= step]
    write_atomically(path, "".join(kept).encode())
