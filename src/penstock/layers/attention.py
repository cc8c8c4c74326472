"""Self-attention over the paged KV cache."""

from dataclasses import dataclass

from penstock.core.kv import LayerKV
from penstock.kernels.signature import HeadLayout, RopeSpec
from penstock.kernels.tape import Tape, Value
from penstock.layers.linear import Linear
from penstock.layers.norm import RmsNorm
from penstock.layers.weights import WeightSpec


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """Grouped-query attention with rotary positions.

    Attributes:
        name: prefix of its tensors in the checkpoint.
        layer: index of the layer, and of its KV planes.
        width: columns of the residual stream.
        scale: what scores are multiplied by.
        window: how many positions back it sees, itself included; None: all.
        softcap: bound of scores; None: none.
        qkv_bias, output_bias: whether the projections have biases.
        head_norm: (eps, unit_offset) of the norms over query and key heads; None where there are none.
    """

    name: str
    layer: int
    width: int
    heads: HeadLayout
    rope: RopeSpec
    scale: float
    window: int | None = None
    softcap: float | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    head_norm: tuple[float, bool] | None = None

    @property
    def kv(self) -> LayerKV:
        """What it stores for each token."""
        return LayerKV(self.heads.kv_heads, self.heads.head_dim, self.window)

    @property
    def qkv(self) -> Linear:
        """Query, key and value projections, fused."""
        kv_width = self.heads.kv_width
        parts = (("q_proj", self.heads.query_width), ("k_proj", kv_width), ("v_proj", kv_width))
        named = tuple((f"{self.name}.{part}", columns) for part, columns in parts)
        return Linear(f"{self.name}.qkv_proj", self.width, named, self.qkv_bias)

    @property
    def output(self) -> Linear:
        """From the heads back to the width of the model."""
        name = f"{self.name}.o_proj"
        return Linear(name, self.heads.query_width, ((name, self.width),), self.output_bias)

    @property
    def head_norms(self) -> tuple[RmsNorm, RmsNorm] | None:
        """The norms over query heads and key heads, or None."""
        if self.head_norm is None:
            return None
        eps, unit_offset = self.head_norm
        size = self.heads.head_dim
        return (
            RmsNorm(f"{self.name}.q_norm", size, eps, unit_offset),
            RmsNorm(f"{self.name}.k_norm", size, eps, unit_offset),
        )

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All weights that the layer reads."""
        norms = tuple(norm.weight for norm in self.head_norms or ())
        return (*self.qkv.weights, *norms, *self.output.weights)

    def record_mixing(self, tape: Tape, x: Value) -> Value:
        """x [tokens, width] → the heads' results [tokens, query_width], before the output projection."""
        qkv = self.qkv.record(tape, x)
        if self.head_norms is not None:
            query, key = self.head_norms
            qkv = tape.head_norm(
                qkv, self.heads, query.weight.ref, key.weight.ref, query.eps, unit_offset=query.unit_offset
            )
        qkv = tape.rotary(qkv, self.heads, self.rope)
        tape.write_kv(qkv, self.heads, self.layer)
        return tape.attention(qkv, self.heads, self.layer, self.scale, window=self.window, softcap=self.softcap)
