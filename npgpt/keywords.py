"""Hints for calls with the keywords of transformers and torch."""

import functools

from npgpt.errors import UserError

# Their names -> our argument, "" if we have none, and what to do.
OURS = {
    "input input_ids inputs": ("idx", "give it first, as idx"),
    "labels target": (
        "targets",
        "use targets, which are one token later than idx (ids[:, :-1], ids[:, 1:]), -1 for -100",
    ),
    "ignore_index": ("targets", "targets of -1 are ignored"),
    "attention_mask": ("mask", "use mask, which takes the same 1 and 0"),
    "attn_mask": ("mask", "use mask, floats that are added to the scores, 0 or -inf"),
    "max_length": ("max_new_tokens", "use max_new_tokens, which does not count the prompt"),
    "do_sample": ("temperature", "use temperature, which is 0 for False and 1 for True"),
    "num_return_sequences": ("idx", "give the prompt in several rows of idx"),
    "stop_strings stopping_criteria": ("stop", "use stop, lists of token ids"),
    "pad_token_id": ("eos_token_id", "use eos_token_id, which also pads"),
    "output_attentions output_hidden_states": ("", "use run_with_cache, which returns every array"),
    "past_key_values use_cache": (
        "",
        "leave it out: generate keeps them, and so does model.reader",
    ),
    "num_beams": ("", "search with model.reader, as in tools/examples/decoding.py"),
    "repetition_penalty min_p bad_words_ids": ("logits_processor", "write a logits_processor"),
    "generator": ("rng", "use rng, a np.random.Generator"),
    "return_dict": ("", "leave it out; the results are a tuple"),
}
HINTS = {name: hint for names, hint in OURS.items() for name in names.split()}


def hinting(cls):
    """Let the public methods that read tokens answer such a keyword with what to do."""
    for name, method in [*vars(cls).items()]:
        arguments = getattr(method, "__annotations__", {})  # private methods have none
        if "idx" in arguments:
            setattr(cls, name, with_hints(method, {"", *arguments}))
    return cls


def with_hints(method, known):
    """Return a method with the same signature. known: the names of its arguments."""

    @functools.wraps(method)
    def call(*args, **keywords):
        for name in HINTS.keys() & keywords.keys():
            ours, hint = HINTS[name]
            if ours in known:
                raise UserError(f"{method.__name__} has no argument {name}: {hint}")
        return method(*args, **keywords)

    return call
