"""Small networks that read a model's hidden states and guess what comes next, in the layouts they are published in."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from penstock.core.errors import ModelFileError
from penstock.core.kv import LayerKV
from penstock.kernels.tape import Tape
from penstock.layers.decoder import DecoderBlock
from penstock.layers.linear import Linear
from penstock.layers.weights import WeightSpec, parameters
from penstock.models.common import BlockStyle, Sight, llama_block, read_sizes
from penstock.models.config import ConfigReader, read_activation, read_rope
from penstock.models.declaration import ModelDeclaration, stored_by

MOST_HEADS = 32


@dataclass(frozen=True, slots=True)
class MedusaHeads:
    """Heads that guess from the same hidden state, each one token further ahead.

    Cai et al., "Medusa: Simple LLM inference acceleration framework with multiple decoding heads", ICML 2024, section
    2.1: residual blocks x + silu(W x + b), then a projection to logits.

    Attributes:
        width: of the model's hidden states.
        heads: how many there are; layers: residual blocks of each.
        bias: whether the blocks have one.
    """

    vocab_size: int
    width: int
    heads: int
    layers: int
    bias: bool

    architecture: ClassVar[str] = "MedusaModel"
    inert_tensors: ClassVar[tuple[str, ...]] = ()
    kv_layers: ClassVar[tuple[LayerKV, ...]] = ()

    @property
    def tensor_prefixes(self) -> tuple[tuple[str, str], ...]:
        """The first releases number heads and, within each, blocks and projection."""
        pairs = []
        for head in range(self.heads):
            names = [(f"blocks.{head}.layers.{layer}.", f"{head}.{layer}.linear.") for layer in range(self.layers)]
            for ours, theirs in (*names, (f"lm_heads.{head}.", f"{head}.{self.layers}.")):
                pairs += [(ours, theirs), (ours, f"medusa_heads.{theirs}"), (ours, f"medusa_heads.{ours}")]
        return tuple(pairs)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All weights that the operations read."""
        linears = (linear for head in range(self.heads) for linear in (*self._blocks(head), self._output(head)))
        return tuple(weight for linear in linears for weight in linear.weights)

    def record(self, tape: Tape) -> None:
        """Hidden states [rows, width] → logits of each head [rows, vocab_size]."""
        states = tape.input(self.width, selected=True)
        logits = []
        for head in range(self.heads):
            x = states
            for block in self._blocks(head):
                x = tape.add(tape.activation(block.record(tape, x), "silu"), x)
            logits.append(self._output(head).record(tape, x))
        tape.finish(*logits)

    def _blocks(self, head: int) -> list[Linear]:
        names = [f"blocks.{head}.layers.{layer}" for layer in range(self.layers)]
        return [Linear(f"medusa.{name}", self.width, ((name, self.width),), self.bias) for name in names]

    def _output(self, head: int) -> Linear:
        name = f"lm_heads.{head}"
        return Linear(f"medusa.{name}", self.width, ((name, self.vocab_size),), head=True)


@dataclass(frozen=True, slots=True)
class EagleHead:
    """Decoder layers over (the embedding of a token, the hidden state before it), which guess the next hidden state.

    Li et al., "EAGLE: Speculative sampling requires rethinking feature uncertainty", ICML 2024, section 3.1. Embedding
    and projection to logits are the model's own; there is neither a norm before the first attention nor one at the end.
    """

    target: ModelDeclaration
    blocks: tuple[DecoderBlock, ...]
    bias: bool

    architecture: ClassVar[str] = "EagleLlamaForCausalLM"
    # The model's own, which some files hold once more.
    inert_tensors: ClassVar[tuple[str, ...]] = ("*embed_tokens.weight", "*lm_head.weight")
    tensor_prefixes: ClassVar[tuple[tuple[str, str], ...]] = (("fc.", "model.fc."), ("layers.", "model.layers."))

    @property
    def vocab_size(self) -> int:
        """Number of logits, that of the target model."""
        return self.target.vocab_size

    @property
    def kv_layers(self) -> tuple[LayerKV, ...]:
        """What each layer stores in the KV cache."""
        return stored_by(self.blocks)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """Everything of its own that operations read."""
        return (*self._joined.weights, *(weight for block in self.blocks for weight in block.weights))

    def record(self, tape: Tape) -> None:
        """Hidden states [tokens, width] → logits [logit rows, vocab_size] and states [logit rows, width]."""
        decoder = self.target.decoder
        states = tape.input(decoder.width)
        embedded = decoder.record_embedding(tape)
        x, residual = None, self._joined.record(tape, tape.concatenate(embedded, states))
        for block in self.blocks:
            x, residual = block.record(tape, x, residual, selects=block is self.blocks[-1])
        assert x is not None, "there is a layer"
        found = tape.add(x, residual)
        tape.finish(decoder.record_logits(tape, found), found)

    @property
    def _joined(self) -> Linear:
        width = self.target.decoder.width
        return Linear("eagle.fc", 2 * width, (("fc", width),), self.bias)


DraftHeads = MedusaHeads | EagleHead


def declare_heads(
    kind: str, config: Mapping[str, Any], tensors: Collection[str], target: ModelDeclaration
) -> DraftHeads:
    """What `config` (the content of config.json) and the names of the tensors say, for heads of a `kind` on `target`.

    It is "medusa" or "eagle".

    Raises ModelFileError and UnsupportedModel as `registry.declare` does, and where they are for another model.
    """
    return _medusa(config, tensors, target) if kind == "medusa" else _eagle(config, tensors, target)


def size_of(heads: DraftHeads) -> tuple[int, int, int]:
    """Parameters: all, those of projections, and those of projections to logits."""
    weights = heads.weights
    return parameters(weights), parameters(weights, "linear"), parameters(weights, "head")


def _medusa(config: Mapping[str, Any], tensors: Collection[str], target: ModelDeclaration) -> MedusaHeads:
    reader = ConfigReader(config, "medusa")
    first = "medusa_num_heads" in config
    heads = reader.integer("medusa_num_heads" if first else "num_heads", largest=MOST_HEADS)
    layers = reader.integer("medusa_num_layers" if first else "num_hidden_layers", 1, largest=MOST_HEADS)
    width = reader.integer("hidden_size", target.decoder.width)
    vocab_size = reader.integer("vocab_size", target.vocab_size)
    if (truncated := reader.integer("truncated_vocab_size", vocab_size)) != vocab_size:
        raise reader.refuse("truncated_vocab_size", truncated, "heads over the whole vocabulary are implemented")
    _check_width("hidden_size", width, target.decoder.width)
    _check_width("vocab_size", vocab_size, target.vocab_size)
    # The rest describes how trees of candidates are searched, or the model that the heads were trained for.
    return MedusaHeads(vocab_size, width, heads, layers, any(name.endswith(".bias") for name in tensors))


def _eagle(config: Mapping[str, Any], tensors: Collection[str], target: ModelDeclaration) -> EagleHead:
    reader = ConfigReader(config, "eagle")
    sizes = read_sizes(reader, kv_heads=None, head_dim=None, max_positions=2048)
    _check_width("hidden_size", sizes.width, target.decoder.width)
    _check_width("vocab_size", sizes.vocab_size, target.vocab_size)
    activation = read_activation(reader, "hidden_act", "silu")
    rope = read_rope(reader, sizes.heads.head_dim, sizes.max_positions)
    style = BlockStyle(activation, qkv_bias=any("q_proj.bias" in each for each in tensors))
    first, *others = (llama_block(f"layers.{layer}", layer, sizes, style, Sight(rope)) for layer in range(sizes.layers))
    blocks = (replace(first, before_attention=None), *others)
    return EagleHead(target, blocks, any(name.endswith("fc.bias") for name in tensors))


def _check_width(key: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise ModelFileError(
            f"config.json has {key} = {found}, but the model's is {wanted}: these heads are for another one."
        )
