"""GPTConfig: the sizes and options of a GPT."""

import dataclasses
import functools
import math

from npgpt.checks import check_choice, check_real, check_whole, plain_numbers, require
from npgpt.errors import UserError
from npgpt.fields import documented, option
from npgpt.model.block import GPT2, Block, asked

MOST_LAYERS = 1024
MOST_WIDTH = 2**24  # of every other size: far above all real models, small enough to compute with

ACTIVATIONS, POSITIONS = ("gelu_tanh", "gelu"), ("learned", "none")

# A field that may be None -> the field that it follows then. (n_inner follows n_embd: see
# `mlp_width`.)
FOLLOWS = {
    "qkv_bias": "bias",
    "mlp_bias": "bias",
    "embd_pdrop": "dropout",
    "attn_pdrop": "dropout",
    "resid_pdrop": "dropout",
    "mlp_pdrop": "resid_pdrop",
}


@documented
@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT, with GPT-2's choices at the size of the `char-cpu` preset.

    A field that may be None follows another one until it is given. It stays None in the config, so
    that `dataclasses.replace(config, dropout=0.0)` changes all dropouts; `resolved(name)` returns
    the value that counts.

    Raises
    ------
    UserError
        If a value is invalid; the message names the field.
    """

    vocab_size: int = option(65, "V", group="sizes")
    block_size: int = option(64, "the longest context, in tokens")
    n_layer: int = option(4, "blocks")
    n_head: int = option(4, "attention heads; they divide the width")
    n_embd: int = option(128, "C, the width")
    n_inner: int | None = option(None, "the MLP's hidden width; None: 4 n_embd")
    bias: bool = option(True, "in the linear layers and LayerNorms", group="biases")
    qkv_bias: bool | None = option(None, "of queries, keys and values; None: as `bias`")
    mlp_bias: bool | None = option(None, "of the MLP's two linear layers; None: as `bias`")
    lm_head_bias: bool = option(False, "of the logits, also if their matrix is tied")
    dropout: float = option(
        0.0,
        "after the embedding, on the attention weights, after attention and MLP",
        group="dropout",
    )
    embd_pdrop: float | None = option(None, "dropout after the embedding; None: as `dropout`")
    attn_pdrop: float | None = option(None, "dropout on the attention weights; None: as `dropout`")
    resid_pdrop: float | None = option(
        None, "dropout after attention and after the MLP; None: as `dropout`"
    )
    mlp_pdrop: float | None = option(None, "dropout after the MLP; None: as `resid_pdrop`")
    causal: bool = option(
        True, "False: an encoder, every position sees every other", group="attention"
    )
    scale_attn_weights: bool = option(True, "scores divided by sqrt(head size)")
    scale_attn_by_inverse_layer_idx: bool = option(
        False, "scores of block i divided by i + 1 as well"
    )
    activation: str = option(
        "gelu_tanh", "OpenAI's form; \"gelu\" is the exact one, nanoGPT's", group="the rest"
    )
    layer_norm_epsilon: float = option(1e-5, "added to the variance in a LayerNorm")
    embedding_layer_norm: bool = option(False, 'a LayerNorm, "ln_e", right after the embedding')
    final_layer_norm: bool = option(True, 'a LayerNorm, "ln_f", right before the head')
    tie_word_embeddings: bool = option(True, "the head's matrix is the token embedding")
    positions: str = option(
        "learned", "none: without GPT-2's wpe, for a block that has positions of its own"
    )
    initializer_range: float = option(
        0.02, "standard deviation of fresh weights; GPT-2's is for hundreds of channels"
    )
    block: Block = option(GPT2, "GPT-2's, or one's own; see `GPT`")
    bos_token_id: int | None = option(None, "the token that begins a text", group="tokens")
    eos_token_id: int | None = option(None, "the token that ends a text")

    def __post_init__(self):
        plain_numbers(self)
        for name in ("vocab_size", "block_size", "n_head", "n_embd"):
            check_whole(name, getattr(self, name), 1, MOST_WIDTH)
        check_whole("n_layer", self.n_layer, 1, MOST_LAYERS)
        if self.n_embd % self.n_head:
            raise UserError(
                f"n_embd {self.n_embd} is not divisible by n_head {self.n_head}: "
                "each head takes an equal share of the width"
            )
        check_whole("n_inner", self.mlp_width, 1, 4 * MOST_WIDTH)
        for name in ("bos_token_id", "eos_token_id"):
            check_whole(name, getattr(self, name), or_none=True)
        for field in dataclasses.fields(self):
            if field.type in (bool, bool | None):
                value = self.resolved(field.name)
                require(field.name, value, isinstance(value, bool), "true or false")
        for name in ("dropout", "embd_pdrop", "attn_pdrop", "resid_pdrop", "mlp_pdrop"):
            check_real(name, self.resolved(name), below=1.0)
        check_real("layer_norm_epsilon", self.layer_norm_epsilon, above=0.0, below=1.0)
        check_real("initializer_range", self.initializer_range, below=1e30)  # drawn in float32
        check_choice("activation", self.activation, ACTIVATIONS)
        check_choice("positions", self.positions, POSITIONS)

    def resolved(self, name: str):
        """Return the value of a field, or if it is None that of the field that it follows."""
        if name == "n_inner":
            return self.mlp_width
        value = getattr(self, name)
        return self.resolved(FOLLOWS[name]) if value is None and name in FOLLOWS else value

    def derived(self):
        """Return the config with None for every field that follows from others."""
        alike = [
            name
            for name in ("n_inner", *FOLLOWS)
            if dataclasses.replace(self, **{name: None}).resolved(name) == self.resolved(name)
        ]
        return dataclasses.replace(self, **dict.fromkeys(alike))

    def with_block(self, forward=None, backward=None):
        """Return the config with a guarded block, which runs an engine's functions or its own."""
        block = self.block.guarded(forward or self.block.forward, backward or self.block.backward)
        return dataclasses.replace(self, block=block)

    def at(self, **places):
        """Return the config for some tokens: a block's forward gets the places that it asks for;
        see `Block`.
        """
        forward = self.block.forward
        if places := asked(forward, places):
            block = dataclasses.replace(self.block, forward=functools.partial(forward, **places))
            return dataclasses.replace(self, block=block)
        return self

    @property
    def head_size(self) -> int:
        """D, the width of a head."""
        return self.n_embd // self.n_head

    @property
    def mlp_width(self) -> int:
        """F, the width of the MLP's hidden layer."""
        return 4 * self.n_embd if self.n_inner is None else self.n_inner

    def attention_scale(self, layer: int, head_size: int | None = None) -> float:
        """Return the factor of the attention scores in block `layer`: 1 / sqrt(head size), unless
        fields change it.
        """
        scale = 1.0 / math.sqrt(head_size or self.head_size) if self.scale_attn_weights else 1.0
        return scale / (layer + 1) if self.scale_attn_by_inverse_layer_idx else scale
