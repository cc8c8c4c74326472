"""Multi-head latent attention over the paged KV cache."""

from dataclasses import dataclass, replace

from penstock.core.errors import ConfigurationError
from penstock.core.kv import LayerKV
from penstock.core.shares import Share, TensorRank, shares
from penstock.kernels.places import RopeSpec
from penstock.kernels.signature import HeadLayout
from penstock.kernels.tape import Tape, Value
from penstock.layers.linear import Linear
from penstock.layers.norm import RmsNorm
from penstock.layers.weights import HeadCut, HeadRows, WeightPart, WeightSpec


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Keys and values of all heads are made of one latent vector for each token, and it alone is stored.

    They are never made (DeepSeek-V2, 2024, section 2.1.2: "absorbed"). A query is multiplied by its head's way to keys,
    and so becomes one for latents; what attention mixes are latents, which each head's way to values follows. Prompts
    and single tokens are computed alike, so that their bits agree. Beside the latent, some columns turn with positions.

    Attributes:
        name: prefix of its tensors in the checkpoint.
        layer: index of the layer, and of its KV plane.
        width: columns of the residual stream.
        query_heads: how many there are.
        rope: how the turning columns of queries and of the one key turn.
        still: columns of a query head that do not turn.
        latent: columns of the latent vector.
        value: columns of a value head.
        query_rank: columns between the two projections to queries; None: there is one.
        scale: what scores are multiplied by.
        eps: of the norms of the latent vector, and of what is between the projections to queries.
        bias: whether projections from and to the residual stream have biases.
        paired: whether columns that turn together are neighbours in the files, instead of halves.
        query_scale: (beta, context) of `QueryScale`; None: queries are worth the same at all positions.
        apart: whether the files have heads' ways to keys, across, and those to values as two tensors.
        share: the query heads of this rank, and `query_heads` their number; None: all. Every rank has all latents.
    """

    name: str
    layer: int
    width: int
    query_heads: int
    rope: RopeSpec
    still: int
    latent: int
    value: int
    query_rank: int | None
    scale: float
    eps: float
    bias: bool = False
    paired: bool = True
    query_scale: tuple[float, int] | None = None
    apart: bool = False
    share: Share | None = None
    window: None = None

    def of_rank(self, rank: TensorRank) -> "LatentAttention":
        """What one of several ranks has of it: some query heads. Raises ConfigurationError where there are too few."""
        if self.query_heads < rank.size:
            raise ConfigurationError(
                f"--tensor-parallel-size is {rank.size}, but the model has {self.query_heads} query heads, and each "
                f"rank needs one; take {self.query_heads} or fewer."
            )
        own = shares(self.query_heads, rank.size)[rank.rank]
        return replace(self, query_heads=own.count, share=own)

    @property
    def whole_heads(self) -> int:
        """The query heads of all ranks."""
        return self.query_heads if self.share is None else self.share.of

    @property
    def heads(self) -> HeadLayout:
        """What attention sees: queries for latents, and one key that is the value, too."""
        return HeadLayout(self.query_heads, 1, self.latent + self.rope.head_dim, latent=True)

    @property
    def kv(self) -> LayerKV:
        """What it stores for each token."""
        return LayerKV(1, self.heads.head_dim, latent=True)

    @property
    def query_width(self) -> int:
        """Columns of the query heads of all ranks, before they are for latents."""
        return self.whole_heads * (self.still + self.rope.head_dim)

    @property
    def qkv(self) -> Linear:
        """To queries, or to what is before them; beside it to the latent vector and the key that turns."""
        query = ("q_proj", self.query_width) if self.query_rank is None else ("q_a_proj", self.query_rank)
        named = tuple((f"{self.name}.{part}", columns) for part, columns in (query, self._down))
        orders = (self._query_rows if self.query_rank is None else None, self._rows(1, self.latent))
        every = Linear(f"{self.name}.qkv_proj", self.width, named, self.bias, rows=orders)
        if self.share is None or self.query_rank is not None:
            return every
        down = self._down[1]
        return every.taking((0, self._query_share), (1, Share(0, down, down)))

    @property
    def query(self) -> tuple[RmsNorm, Linear] | None:
        """The norm and the projection to queries behind the first; None where there is one projection."""
        if self.query_rank is None:
            return None
        name = f"{self.name}.q_b_proj"
        norm = RmsNorm(f"{self.name}.q_a_layernorm", self.query_rank, self.eps)
        every = Linear(name, self.query_rank, ((name, self.query_width),), rows=(self._query_rows,))
        return norm, every if self.share is None else every.taking((0, self._query_share))

    @property
    def norm(self) -> RmsNorm:
        """The norm of latent vectors, before they are stored."""
        return RmsNorm(f"{self.name}.kv_a_layernorm", self.latent, self.eps)

    @property
    def to_latents(self) -> WeightSpec:
        """Each head's way from latents to keys, across: from queries to latents, [heads · latent, still]."""
        cut = HeadCut(self.whole_heads, self.still + self.value, 0, self.still, across=True)
        return self._of_heads("k_b_proj", (self.latent, self.still), cut)

    @property
    def to_values(self) -> WeightSpec:
        """Each head's way from latents to values, [heads · value, latent]."""
        cut = HeadCut(self.whole_heads, self.still + self.value, self.still, self.value)
        return self._of_heads("v_b_proj", (self.value, self.latent), cut)

    @property
    def output(self) -> Linear:
        """From the value heads back to the width of the model."""
        name = f"{self.name}.o_proj"
        every = Linear(name, self.whole_heads * self.value, ((name, self.width),), self.bias)
        return every if self.share is None else every.given(self.share.times(self.value))

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All weights that the layer reads."""
        query = () if self.query is None else (self.query[0].weight, *self.query[1].weights)
        return (
            *self.qkv.weights,
            *query,
            self.norm.weight,
            self.to_latents,
            self.to_values,
            *self.output.weights,
        )

    def record_mixing(self, tape: Tape, x: Value) -> Value:
        """x [tokens, width] → the heads' results [tokens, heads · value], before the output projection."""
        heads, turning, down = self.query_heads, self.rope.head_dim, self._down[1]
        both = self.qkv.record(tape, x)
        query = tape.columns(both, 0, both.width - down)
        if self.query is not None:
            norm, projection = self.query
            query = projection.record(tape, norm.record(tape, query))
        key = tape.columns(both, both.width - down, down)
        still, turned = tape.columns(query, 0, self.still, heads), tape.columns(query, self.still, turning, heads)
        turned = tape.concatenate(turned, tape.columns(key, self.latent, turning))
        turned = tape.rotary(turned, HeadLayout(heads, 1, turning, latent=True), self.rope)
        latents = tape.head_linear(still, self.to_latents.ref, heads, heads * self.latent)
        latents = tape.concatenate(latents, self.norm.record(tape, tape.columns(key, 0, self.latent)))
        fused = tape.concatenate(latents, turned, heads + 1)
        if self.query_scale is not None:
            fused = tape.query_scale(fused, self.heads, *self.query_scale)
        tape.write_kv(fused, self.heads, self.layer)
        mixed = tape.attention(fused, self.heads, self.layer, self.scale)
        mixed = tape.columns(mixed, 0, self.latent, heads)
        return tape.head_linear(mixed, self.to_values.ref, heads, heads * self.value)

    @property
    def _down(self) -> tuple[str, int]:
        return "kv_a_proj_with_mqa", self.latent + self.rope.head_dim

    @property
    def _query_rows(self) -> HeadRows | None:
        return self._rows(self.whole_heads, self.still)

    @property
    def _query_share(self) -> Share:
        assert self.share is not None, "there are several ranks"
        return self.share.times(self.still + self.rope.head_dim)

    def _rows(self, heads: int, before: int) -> HeadRows | None:
        """How rows of heads stand in the files; those that turn are behind `before` others."""
        turning = self.rope.head_dim
        return HeadRows(heads, before + turning, turning, paired=True, before=before) if self.paired else None

    def _of_heads(self, name: str, shape: tuple[int, int], cut: HeadCut) -> WeightSpec:
        heads, whole = self.query_heads, f"{self.name}.{name}.weight"
        tensor = whole if self.apart else f"{self.name}.kv_b_proj.weight"
        share = None if self.share is None else self.share.times(shape[0])
        part = WeightPart(tensor, (heads * shape[0], shape[1]), cut=None if self.apart else cut, share=share)
        return WeightSpec(whole, (part,), "linear", experts=heads, chosen=heads)
