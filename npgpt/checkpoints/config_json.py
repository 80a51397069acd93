"""Convert config.json, transformers' description of a GPT-2, to GPTConfig and back."""

from pathlib import Path

from npgpt.checks import check_choice, require, shown
from npgpt.errors import UserError
from npgpt.files import read_json, tool
from npgpt.model.block import GPT2, Block
from npgpt.model.config import GPTConfig

ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}

# Fields of config.json with transformers' defaults, and GPTConfig's names of those that it calls
# otherwise.
DEFAULTS = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
}
OURS = {name: name for name in DEFAULTS} | {
    "n_positions": "block_size",
    "activation_function": "activation",
}

# Fields that transformers' GPT-2 does not have; stored in config.json under "npgpt".
OWN_FIELDS = """
    bias qkv_bias mlp_bias causal embedding_layer_norm final_layer_norm lm_head_bias
    dropout mlp_pdrop
""".split()  # and "positions", "block"

# Fields that do not change what the model computes from the same weights. Others must be off: null,
# false or empty.
HARMLESS = """
    _attn_implementation _attn_implementation_autoset _name_or_path _num_labels architectures
    attn_implementation cls_token_id decoder_start_token_id do_sample dtype early_stopping
    finetuning_task gradient_checkpointing id2label is_decoder label2id length_penalty license
    max_length min_length model_type n_special name no_repeat_ngram_size num_beams num_labels
    num_return_sequences output_attentions output_hidden_states pad_token_id predict_special_tokens
    prefix problem_type reorder_and_upcast_attn repetition_penalty return_dict sep_token_id
    task_specific_params temperature tokenizer_class top_k top_p torch_dtype torchscript
    transformers_version unk_token_id use_bfloat16 use_cache
    npgpt n_ctx
""".split()


def read_config(path: Path, block: Block | None = None) -> GPTConfig:
    """Return the GPTConfig in a config.json. Raises UserError if it describes another model, or
    unsupported options.
    """
    try:
        return config_from_fields(read_json(path), block)
    except (OSError, UserError) as error:
        raise UserError(f"{path} cannot be used: {error}") from None


def config_from_fields(fields: dict, block: Block | None = None) -> GPTConfig:
    """Return the GPTConfig for config.json's fields, a dict. Raises UserError, naming the invalid
    field.

    block: the model's; None: GPT-2's. config.json has its name and SHA-256, not its code, which
    could not be trusted.
    """
    if not isinstance(fields, dict) or fields.get("model_type") not in ("gpt2", "npgpt"):
        raise UserError('this is not a GPT-2: "model_type" must be "gpt2"')
    for name, value in fields.items():
        known = name in DEFAULTS or name in HARMLESS or name.startswith("summary_")
        if not known and value not in (None, False, {}, []):
            raise UserError(
                f'"{name}" is {shown(value)}, which npgpt does not support: its results would be '
                "wrong"
            )
    own = fields.get("npgpt", {"dropout": 0.0})
    block = block or GPT2
    if isinstance(own, dict) and own.get("lora_rank"):
        raise UserError(
            "the model has LoRA of an earlier version; LoRA is a block now: write an adapter with "
            "that version, `npgpt export --adapter`, and read it with "
            + tool("tools/peft_adapter.py")
        )
    if not isinstance(own, dict) or not set(own) <= {*OWN_FIELDS, "positions", "block"}:
        raise UserError(f'"npgpt" is {shown(own)}, which this version does not know')
    known = own.get("block", {})
    require('"block"', known, isinstance(known, dict), "a block's name and SHA-256")
    values: dict = {OURS[name]: fields.get(name, default) for name, default in DEFAULTS.items()}
    check_choice('"activation_function"', values["activation"], ACTIVATIONS)
    values["activation"] = ACTIVATIONS[values["activation"]]
    config = GPTConfig(**values, **{**own, "block": block}).derived()
    same = known.get("sha256", GPT2.sha256) == block.sha256  # GPT-2's block has none there
    same = same and known.get("functions", block.names) == block.names
    if "npgpt" in fields and not same and (known or not block.extends_gpt2(config)):
        name = shown(known["name"]) if "name" in known else GPT2
        needed = "give the model's block as --block, in Python as block="
        if block == GPT2:
            raise UserError(f"the model has a block of its own, {name}: {needed}")
        raise UserError(
            f"the model has {name}, which is not {block} (the SHA-256 or the functions differ): "
            f"{needed}, and none for GPT-2's"
        )
    return config


def config_to_fields(config: GPTConfig, dtype: str = "float32") -> dict:
    """Return the fields of config.json for a GPTConfig; reading them gives the same config.

    A model that transformers' GPT-2 cannot compute gets the "model_type" npgpt, so that
    transformers refuses it.
    """
    fields = {theirs: config.resolved(ours) for theirs, ours in OURS.items()}
    fields["activation_function"] = "gelu_new" if config.activation == "gelu_tanh" else "gelu"
    own = {name: config.resolved(name) for name in OWN_FIELDS}
    if config.positions != "learned":
        own["positions"] = config.positions
    if config.block != GPT2:
        block = config.block
        own["block"] = {"name": str(block), "sha256": block.sha256, "functions": block.names}
    model = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    if unsupported_by_transformers(config):
        model = {"model_type": "npgpt"}
    return {**model, "torch_dtype": dtype, **fields, "npgpt": own}


def unsupported_by_transformers(config: GPTConfig) -> str | None:
    """Return the name of the field that transformers' GPT-2 does not support, or None."""
    theirs = {
        "causal": True,
        "embedding_layer_norm": False,
        "final_layer_norm": True,
        "lm_head_bias": False,
        "positions": "learned",
        "block": GPT2,
    }
    return next((name for name, value in theirs.items() if getattr(config, name) != value), None)
