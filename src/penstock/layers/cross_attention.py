"""Cross-attention: a decoder's tokens ask the states that an encoder has made of their source."""

from dataclasses import dataclass, replace

from penstock.core.kv import LayerKV
from penstock.kernels.signature import HeadLayout
from penstock.kernels.tape import Tape, Value
from penstock.layers.attention import AttentionNames
from penstock.layers.linear import Linear
from penstock.layers.weights import WeightSpec


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Attention of a decoder's tokens to all tokens of their source.

    The encoder's program stores keys and values of a source once; the decoder's program has queries alone.
    Source: Vaswani et al., Attention Is All You Need, 2017, section 3.2.3.

    Attributes:
        name: prefix of its tensors in the checkpoint.
        layer: index of its KV planes, which lie behind those of the decoder's own attention.
        width: columns of the decoder's residual stream, and of the encoder's states.
        scale: what scores are multiplied by.
        biased: whether the projections have biases.
    """

    name: str
    layer: int
    width: int
    heads: HeadLayout
    scale: float
    biased: bool = False
    names: AttentionNames = AttentionNames()

    @property
    def kv(self) -> LayerKV:
        """What it stores for each token of a source."""
        return LayerKV(self.heads.kv_heads, self.heads.head_dim, source=True)

    @property
    def query(self) -> Linear:
        """From the decoder's residual stream to query heads."""
        name = f"{self.name}.{self.names.query}"
        return Linear(name, self.width, ((name, self.heads.query_width),), self.biased)

    @property
    def key_value(self) -> Linear:
        """From the encoder's states to key heads and value heads, as one."""
        width = self.heads.kv_width
        parts = tuple((f"{self.name}.{part}", width) for part in (self.names.key, self.names.value))
        return Linear(f"{self.name}.kv_proj", self.width, parts, self.biased)

    @property
    def output(self) -> Linear:
        """From the heads back to the width of the model."""
        name = f"{self.name}.{self.names.output}"
        return Linear(name, self.heads.query_width, ((name, self.width),), self.biased)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All weights that the layer reads, those of the encoder's program too."""
        return (*self.query.weights, *self.key_value.weights, *self.output.weights)

    def record(self, tape: Tape, x: Value) -> Value:
        """x [rows, width] → [rows, width]."""
        query = self.query.record(tape, x)
        return self.output.record(tape, tape.source_attention(query, self.heads, self.layer, self.scale))

    def record_source(self, tape: Tape, states: Value) -> None:
        """Store keys and values of the encoder's states [tokens, width]."""
        tape.write_kv(self.key_value.record(tape, states), replace(self.heads, query_heads=0), self.layer)
