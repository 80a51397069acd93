"""Fields of a dataclass with a help text, which the command's flags and the docstring show."""

import dataclasses
import inspect
from typing import Any


def option(default, help, group="") -> Any:
    """Return a field with a default and a help text. group: the title of the fields from it on."""
    return dataclasses.field(default=default, metadata={"help": help, "group": group})


def documented(cls):
    """Append the help texts of a dataclass's fields to its docstring, for `help` and pdoc."""
    lines = [f"* `{field.name}`: {field.metadata['help']}" for field in dataclasses.fields(cls)]
    cls.__doc__ = "\n".join([inspect.cleandoc(cls.__doc__ or ""), "", *lines])
    return cls
