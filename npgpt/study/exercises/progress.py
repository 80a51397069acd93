"""What a learner has solved, and the hints taken: progress.json beside the exercise files."""

import datetime
from pathlib import Path

from npgpt.checks import check_path
from npgpt.errors import UserError
from npgpt.files import read_json, write_json
from npgpt.study.exercises.exercise import FOLDER


def folder_here():
    """Return the folder "exercises", or the current folder if it is called so, as in a notebook."""
    return Path() if Path.cwd().name == FOLDER else Path(FOLDER)


class Progress:
    """The progress in one folder; without a folder (None) nothing is saved.

    `entries`: name of an exercise -> {"solved": date, "tries": n, "hints": {key: n}}. One that was
    never checked has no entry, one that was never solved has no "solved".
    `at`: the exercise that `npgpt learn` has shown last, or None.

    Every change is saved at once, atomically. Raises UserError if the file is damaged; OSError.
    """

    def __init__(self, folder):
        self.path, self.entries, self.at = None, {}, None
        if folder is None:
            return
        check_path("the folder of exercises", folder)
        self.path = Path(folder) / "progress.json"
        try:
            content = read_json(self.path)
            self.entries, self.at = dict(content["exercises"]), content.get("at")
            for entry in self.entries.values():
                counts = [entry["tries"], *entry["hints"].values()]
                if not all(type(count) is int and count >= 0 for count in counts):
                    raise ValueError(f"{counts} are no counts")
        except FileNotFoundError:
            pass
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(
                f"{self.path} is damaged ({error}): repair it, or delete it to start "
                "again; it does not hold the exercises themselves"
            ) from None

    def entry(self, name):
        """Return the entry of an exercise, read only."""
        return self.entries.get(name, {"tries": 0, "hints": {}})

    def arrived(self, name):
        """Note that `npgpt learn` shows an exercise."""
        self.at = name
        self.save()

    def tried(self, name, solved):
        """Count a check of an exercise, and note today's date if it was solved the first time."""
        entry = self.entries.setdefault(name, self.entry(name))
        entry["tries"] += 1
        if solved:
            entry.setdefault("solved", datetime.date.today().isoformat())
        self.save()

    def next_hint(self, name, key, last):
        """Count a hint on the line `key`. Return its number, from 0 to `last`, where it stays."""
        hints = self.entries.setdefault(name, self.entry(name))["hints"]
        hints[key] = min(hints.get(key, 0), last) + 1
        self.save()
        return hints[key] - 1

    def save(self):
        if self.path:
            write_json(self.path, {"at": self.at, "exercises": self.entries}, indent=1)
