"""GPTConfig: the numbers and switches that make one GPT different from another."""

import dataclasses
import math

from npgpt.errors import UserError


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT. The defaults are GPT-2's own choices at the size of the `char-cpu` preset.

    Raises UserError (a ValueError), naming the field, for values that make no model.
    """

    vocab_size: int = 65                    # V
    block_size: int = 64                    # the longest context, in tokens
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 128                       # C, the width
    dropout: float = 0.0                    # after the embedding, on the attention weights, after attention and MLP
    bias: bool = True                       # biases in the linear layers and LayerNorms
    activation: str = "gelu_tanh"           # OpenAI's form; "gelu" is the exact one, nanoGPT's
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = True        # the head's matrix is the token embedding
    qkv_bias: bool | None = None            # biases of queries, keys and values; None: as `bias`
    causal: bool = True                     # False: an encoder, every position sees every other
    scale_attn_weights: bool = True         # scores divided by sqrt(head size)
    embedding_layer_norm: bool = False      # a LayerNorm, "ln_e", right after the embedding

    def __post_init__(self):
        for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"{name} must be a positive whole number, not {value!r}")
        for name in ("bias", "tie_word_embeddings", "causal", "scale_attn_weights", "embedding_layer_norm"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{name} must be true or false, not {getattr(self, name)!r}")
        if self.qkv_bias is not None and not isinstance(self.qkv_bias, bool):
            raise UserError(f"qkv_bias must be true, false or null, not {self.qkv_bias!r}")
        if self.n_embd % self.n_head:
            raise UserError(f"n_embd {self.n_embd} is not divisible by n_head {self.n_head}: "
                            "each head takes an equal share of the width")
        if not _is_number(self.dropout) or not 0.0 <= self.dropout < 1.0:
            raise UserError(f"dropout must be a number from 0 up to, not including, 1, not {self.dropout!r}")
        if not _is_number(self.layer_norm_epsilon) or not 0.0 < self.layer_norm_epsilon < 1.0:
            raise UserError(f"layer_norm_epsilon must be a small positive number, not {self.layer_norm_epsilon!r}")
        if self.activation not in ("gelu_tanh", "gelu"):
            raise UserError(f'activation must be "gelu_tanh" (OpenAI\'s) or "gelu" (exact), not {self.activation!r}')

    @classmethod
    def from_dict(cls, fields):
        """The inverse of `dataclasses.asdict`; an unknown or missing field is a UserError that names it."""
        known = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(fields, dict):
            raise UserError(f"a model configuration is a table of fields, not {fields!r}")
        if wrong := set(fields) ^ known:
            raise UserError(f"the model configuration has missing or unknown fields: {', '.join(sorted(wrong))}")
        return cls(**fields)

    @property
    def attention_scale(self):
        """What the attention scores are multiplied by: 1 / sqrt(D), or 1 where `scale_attn_weights` is off."""
        return 1.0 / math.sqrt(self.n_embd // self.n_head) if self.scale_attn_weights else 1.0


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)
