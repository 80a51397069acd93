"""metrics.jsonl: one JSON object a line, what a run measured as it went."""

import json
from pathlib import Path

from npgpt.errors import UserError
from npgpt.files import write_atomically

METRICS_FILE = "metrics.jsonl"


def append_metrics(out_dir, record):
    """Add one record (a dict with a "step") to the end of the file."""
    with open(Path(out_dir) / METRICS_FILE, "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def read_metrics(out_dir):
    """All records, a list of dicts; a last line that a kill cut off is left out. UserError where there is no file."""
    path = Path(out_dir) / METRICS_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): is {out_dir} the folder of a run?") from None
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            whole = isinstance(record, dict) and isinstance(record.get("step"), int)
        except ValueError:
            whole = False
        if whole:
            records.append(record)
        elif number < len(lines):
            raise UserError(f"{path}, line {number} is no record of a step: the file is damaged")
    return records


def drop_metrics_after(out_dir, step):
    """Forget what was measured after a checkpoint: the resumed run measures it again."""
    if (Path(out_dir) / METRICS_FILE).exists():
        kept = [json.dumps(record) for record in read_metrics(out_dir) if record["step"] <= step]
        write_atomically(Path(out_dir) / METRICS_FILE, "".join(line + "\n" for line in kept).encode())
