"""Hints for calls that use the keywords of transformers and torch."""

import functools
import inspect
from typing import TypeVar

from npgpt.errors import UserError

# Their name -> our argument, None if it is another method, and what is to be known about it.
OURS = {
    "input": ("idx", "give it first"),
    "input_ids": ("idx", "give it first"),
    "inputs": ("idx", "give it first"),
    "labels": ("targets", "one token later than idx, as in ids[:, :-1], ids[:, 1:], and -1 for -100"),
    "target": ("targets", "one token later than idx"),
    "ignore_index": ("targets", "with -1 where they are ignored"),
    "attention_mask": ("mask", "which takes the same 1 and 0, (B, T)"),
    "attn_mask": ("mask", "floats that are added to the scores, 0 or -inf"),
    "max_length": ("max_new_tokens", "which does not count the prompt"),
    "do_sample": ("temperature", "0 for False, 1 for True"),
    "num_return_sequences": ("idx", "with the prompt in several rows"),
    "stop_strings": ("stop", "lists of token ids"),
    "stopping_criteria": ("stop", "lists of token ids"),
    "pad_token_id": ("eos_token_id", "which also pads"),
    "generator": ("seed", "a whole number"),
    "streamer": (None, "use stream, an iterator over the next tokens"),
    "output_attentions": (None, "use run_with_cache, which returns every array"),
    "output_hidden_states": (None, "use run_with_cache, which returns every array"),
    "past_key_values": (None, "leave it out: generate and stream keep keys and values"),
    "use_cache": (None, "leave it out: generate and stream keep keys and values"),
    "return_dict": (None, "leave it out: the result is a tuple"),
}
Class = TypeVar("Class", bound=type)


def hinting(cls: Class) -> Class:
    """Let the public methods of a class answer such a keyword with a UserError that names ours."""
    for name, method in [*vars(cls).items()]:
        if inspect.isfunction(method) and (name == "__call__" or not name.startswith("_")):
            setattr(cls, name, with_hints(method))
    return cls


def with_hints(method):
    """Return the method, with the same signature."""
    known = inspect.signature(method).parameters

    @functools.wraps(method)
    def call(*args, **keywords):
        for name in keywords:
            ours, hint = OURS.get(name, ("", ""))
            if name not in known and (ours is None or ours in known):
                use = f"use {ours}, {hint}" if ours else hint
                raise UserError(f"{method.__name__} has no argument {name}: {use}")
        return method(*args, **keywords)

    return call
