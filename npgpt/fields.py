"""Fields of a dataclass with a help text, which the command's flags and the docstring show."""

import dataclasses
import inspect
from typing import Any


def option(default, help, group="") -> Any:
    """Return a field with a default and a help text. group: the title of the fields from it on."""
    return dataclasses.field(default=default, metadata={"help": help, "group": group})


def documented(cls):
    """Put the fields of a dataclass and their help texts into its docstring."""
    summary, sections, rest = inspect.cleandoc(cls.__doc__ or "").partition("\n\nRaises\n")
    lines = ["", "", "Parameters", "----------"]
    for field in dataclasses.fields(cls):
        kind = getattr(field.type, "__name__", field.type)
        lines += [
            f"{field.name} : {kind}, default {field.default!r}",
            f"    {field.metadata['help']}",
        ]
    cls.__doc__ = summary + "\n".join(lines) + sections + rest
    return cls
