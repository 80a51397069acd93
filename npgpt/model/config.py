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
    n_inner: int | None = None              # the MLP's hidden width; None: 4 n_embd
    embd_pdrop: float | None = None         # dropout after the embedding; None: as `dropout`
    attn_pdrop: float | None = None         # dropout on the attention weights; None: as `dropout`
    resid_pdrop: float | None = None        # dropout after attention and MLP; None: as `dropout`
    scale_attn_by_inverse_layer_idx: bool = False   # scores of block i divided by i + 1 as well
    bos_token_id: int | None = None         # the token that begins a text, for those who generate
    eos_token_id: int | None = None         # the token that ends a text

    def __post_init__(self):
        for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd"):
            self._check(name, _is_whole(getattr(self, name)) and getattr(self, name) > 0, "a positive whole number")
        if self.n_embd % self.n_head:
            raise UserError(f"n_embd {self.n_embd} is not divisible by n_head {self.n_head}: "
                            "each head takes an equal share of the width")
        for name, default in (("qkv_bias", self.bias), ("n_inner", 4 * self.n_embd), ("embd_pdrop", self.dropout),
                              ("attn_pdrop", self.dropout), ("resid_pdrop", self.dropout)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)     # the way round `frozen` that dataclasses documents
        self._check("n_inner", _is_whole(self.n_inner) and self.n_inner > 0, "a positive whole number")
        for name in ("bos_token_id", "eos_token_id"):
            value = getattr(self, name)
            self._check(name, value is None or _is_whole(value) and 0 <= value, "a token id or null")
        for name in ("bias", "tie_word_embeddings", "causal", "scale_attn_weights", "embedding_layer_norm", "qkv_bias",
                     "scale_attn_by_inverse_layer_idx"):
            self._check(name, isinstance(getattr(self, name), bool), "true or false")
        for name in ("dropout", "embd_pdrop", "attn_pdrop", "resid_pdrop"):
            value = getattr(self, name)
            self._check(name, _is_number(value) and 0.0 <= value < 1.0, "a number from 0 up to, not including, 1")
        epsilon = self.layer_norm_epsilon
        self._check("layer_norm_epsilon", _is_number(epsilon) and 0.0 < epsilon < 1.0, "a small positive number")
        self._check("activation", self.activation in ("gelu_tanh", "gelu"), '"gelu_tanh" (OpenAI\'s) or "gelu" (exact)')

    def _check(self, name, right, what):
        if not right:
            raise UserError(f"{name} must be {what}, not {getattr(self, name)!r}")

    @property
    def head_size(self):
        """D, the width of a head."""
        return self.n_embd // self.n_head

    def attention_scale(self, layer):
        """What the attention scores of a block are multiplied by, as the two `scale_attn` switches say."""
        scale = 1.0 / math.sqrt(self.head_size) if self.scale_attn_weights else 1.0
        return scale / (layer + 1) if self.scale_attn_by_inverse_layer_idx else scale


def _is_whole(value):
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)
