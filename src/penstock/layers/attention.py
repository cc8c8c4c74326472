"""Self-attention: over the paged KV cache, or among the tokens of a text that are all there."""

from dataclasses import dataclass, replace

from penstock.core.errors import ConfigurationError
from penstock.core.kv import LayerKV
from penstock.core.shares import HeadShare, TensorRank, head_shares
from penstock.kernels.places import BucketBias, RopeSpec
from penstock.kernels.signature import HeadLayout
from penstock.kernels.tape import Tape, Value
from penstock.layers.linear import Linear
from penstock.layers.norm import RmsNorm
from penstock.layers.weights import HeadCut, HeadRows, WeightPart, WeightSpec


@dataclass(frozen=True, slots=True)
class AttentionNames:
    """What projections are called in a checkpoint, behind the layer's name; `fused` is query, key and value as one."""

    query: str = "q_proj"
    key: str = "k_proj"
    value: str = "v_proj"
    fused: str = "qkv_proj"
    output: str = "o_proj"


@dataclass(frozen=True, slots=True)
class Buckets:
    """`BucketBias` by a tensor of the checkpoint, [count, query heads], which layers may share.

    Attributes:
        share: the heads of this rank; None: all.
    """

    name: str
    count: int
    farthest: int
    share: HeadShare | None = None

    def weight(self, heads: HeadLayout) -> WeightSpec:
        """The matrix [count, query heads] of what scores get."""
        over = None if self.share is None else self.share.query
        part = WeightPart(f"{self.name}.weight", (self.count, heads.query_heads), over=over)
        return WeightSpec(part.tensor, (part,), "positions", neutral=0.0)

    def made(self, heads: HeadLayout, *, behind: bool) -> BucketBias:
        """What the operation of attention with such heads has; `behind` is whether keys behind a query are seen."""
        return BucketBias(self.weight(heads).ref, self.count, self.farthest, behind)


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """Grouped-query attention with rotary positions.

    Attributes:
        name: prefix of its tensors in the checkpoint.
        layer: index of the KV planes that it reads: its own among the layers that store some, or another's.
        width: columns of the residual stream.
        rope: how query and key heads turn; None: they do not.
        scale: what scores are multiplied by.
        window: how many positions back it sees, itself included; None: all.
        softcap: bound of scores; None: none.
        qkv_bias, output_bias: whether the projections have biases.
        head_norm: (eps, unit_offset) of the norms over query and key heads; None where there are none.
        whole_norm: whether these are over all query heads together, and all key heads, instead of each.
        paired: whether columns that turn together are neighbours in the files, instead of halves of those that turn.
        fused: whether the files have query, key and value projections as one.
        by_head: whether that one has a head's query, key and value beside each other.
        across: whether the files have matrices as [inputs, outputs].
        query_scale: (beta, context) of `QueryScale`; None: queries are worth the same at all positions.
        sunk: whether each query head has a score that takes part in its softmax beside those of positions.
        value_norm: whether value heads are normed, too, by a weight of 1.
        keys_as_values: whether one projection makes both, which are then normed apart, and values are not turned.
        borrows: whether it has queries alone, and reads keys and values that an earlier layer stored.
        mutual: whether tokens see those behind them, too, which all have to be there; nothing is stored then.
        bias: what scores get by distances; None: nothing.
        shares: the heads of each of several ranks, and `rank` which of them has these; `heads` are its own then.
    """

    name: str
    layer: int
    width: int
    heads: HeadLayout
    rope: RopeSpec | None
    scale: float
    window: int | None = None
    softcap: float | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    head_norm: tuple[float, bool] | None = None
    whole_norm: bool = False
    paired: bool = False
    fused: bool = False
    sunk: bool = False
    by_head: bool = False
    across: bool = False
    query_scale: tuple[float, int] | None = None
    value_norm: bool = False
    keys_as_values: bool = False
    borrows: bool = False
    mutual: bool = False
    bias: Buckets | None = None
    names: AttentionNames = AttentionNames()
    shares: tuple[HeadShare, ...] = ()
    rank: int = 0

    def of_rank(self, rank: TensorRank) -> "SelfAttention":
        """What one of several ranks has of it: some query heads, and the heads of keys and values that these read.

        Raises ConfigurationError where there are too few.
        """
        whole = self.heads
        found = head_shares(whole.query_heads, whole.kv_heads, rank.size)
        if self.whole_norm and whole.kv_heads < rank.size:
            raise ConfigurationError(
                f"--tensor-parallel-size is {rank.size}, but the model norms all of its {whole.kv_heads} key heads "
                f"together, and each rank needs one of its own; take {whole.kv_heads} or fewer."
            )
        own = found[rank.rank]
        heads = replace(whole, query_heads=own.query.count, kv_heads=own.kv.count)
        bias = None if self.bias is None else replace(self.bias, share=own)
        return replace(self, heads=heads, bias=bias, shares=found, rank=rank.rank)

    @property
    def share(self) -> HeadShare | None:
        """The heads of this rank; None: all."""
        return self.shares[self.rank] if self.shares else None

    @property
    def whole(self) -> HeadLayout:
        """The heads of all ranks."""
        if self.share is None:
            return self.heads
        return replace(self.heads, query_heads=self.share.query.of, kv_heads=self.share.kv.of)

    @property
    def kv(self) -> LayerKV | None:
        """What it stores for each token; None where it borrows, or stores nothing."""
        return None if self.borrows or self.mutual else LayerKV(self.heads.kv_heads, self.heads.head_dim, self.window)

    @property
    def qkv(self) -> Linear:
        """Query, key and value projections, as one, or those of them that there are."""
        every, share, whole = self._qkv, self.share, self.whole
        if share is None:
            return every
        query, kv = share.query.times(whole.head_dim), share.kv.times(whole.head_dim)
        if not self.fused or self.by_head:
            return every.taking(*zip(range(len(every.parts)), (query, kv, kv), strict=False))
        of, keys = whole.fused_width, whole.query_width
        values = keys + whole.kv_width
        return every.taking((0, query.behind(0, of)), (0, kv.behind(keys, of)), (0, kv.behind(values, of)))

    @property
    def _qkv(self) -> Linear:
        """That of all ranks."""
        heads, whole = self.whole, f"{self.name}.qkv_proj"
        fused, own = f"{self.name}.{self.names.fused}", (self.names.query, self.names.key, self.names.value)
        if self.fused and not self.by_head:
            rows = self._rows(heads.query_heads + heads.kv_heads)
            parts = ((fused, heads.fused_width),)
            return Linear(whole, self.width, parts, self.qkv_bias, rows=(rows,), across=self.across)
        widths = (heads.query_width, heads.kv_width, heads.kv_width)
        orders = (self._rows(heads.query_heads), self._rows(heads.kv_heads), None)
        if self.fused:
            size = heads.head_dim
            cuts = tuple(HeadCut(heads.query_heads, 3 * size, place * size, size) for place in range(3))
            named = tuple((fused, columns) for columns in widths)
            return Linear(whole, self.width, named, self.qkv_bias, rows=orders, cuts=cuts)
        there = 1 if self.borrows else 2 if self.keys_as_values else 3
        named = tuple((f"{self.name}.{part}", columns) for part, columns in zip(own, widths, strict=True))[:there]
        return Linear(whole, self.width, named, self.qkv_bias, rows=orders[:there], across=self.across)

    @property
    def output(self) -> Linear:
        """From the heads back to the width of the model."""
        name, share, heads = f"{self.name}.{self.names.output}", self.share, self.whole
        every = Linear(name, heads.query_width, ((name, self.width),), self.output_bias, across=self.across)
        return every if share is None else every.given(share.query.times(heads.head_dim))

    @property
    def head_norms(self) -> tuple[RmsNorm, RmsNorm] | None:
        """The norms over query heads and key heads, or None; without keys, that of queries stands for both."""
        if self.head_norm is None:
            return None
        eps, unit_offset = self.head_norm
        size, heads = self.heads.head_dim, self.whole
        query, key = (heads.query_width, heads.kv_width) if self.whole_norm else (size, size)
        of_queries = RmsNorm(f"{self.name}.q_norm", query, eps, unit_offset, self._rows(query // size))
        if self.borrows:
            return of_queries, of_queries
        return of_queries, RmsNorm(f"{self.name}.k_norm", key, eps, unit_offset, self._rows(key // size))

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All weights that the layer reads."""
        norms = dict.fromkeys(norm.weight for norm in self.head_norms or ())
        sinks = self.sinks
        bias = () if self.bias is None else (self.bias.weight(self.heads),)
        return (*self.qkv.weights, *norms, *bias, *(() if sinks is None else (sinks,)), *self.output.weights)

    @property
    def sinks(self) -> WeightSpec | None:
        """The vector [query heads] of scores beside those of positions, or None."""
        if not self.sunk:
            return None
        share = None if self.share is None else self.share.query
        part = WeightPart(f"{self.name}.sinks", (self.heads.query_heads,), share=share)
        return WeightSpec(part.tensor, (part,), "bias", neutral=0.0)

    def record_mixing(self, tape: Tape, x: Value) -> Value:
        """x [tokens, width] → the heads' results [tokens, query_width], before the output projection."""
        heads = replace(self.heads, kv_heads=0) if self.borrows else self.heads
        qkv = self.qkv.record(tape, x)
        if self.keys_as_values and not self.borrows:
            qkv = tape.concatenate(qkv, tape.columns(qkv, heads.query_width, heads.kv_width))
        if self.head_norms is not None and self.whole_norm and self.shares:
            qkv = self._record_shared_norm(tape, qkv)
        elif self.head_norms is not None:
            query, key = self.head_norms
            qkv = tape.head_norm(
                qkv,
                heads,
                query.weight.ref,
                key.weight.ref,
                query.eps,
                unit_offset=query.unit_offset,
                whole=self.whole_norm,
                values=self.value_norm,
            )
        if self.rope is not None:
            qkv = tape.rotary(qkv, heads, self.rope)
        if self.query_scale is not None:
            qkv = tape.query_scale(qkv, heads, *self.query_scale)
        bias = None if self.bias is None else self.bias.made(heads, behind=self.mutual)
        if self.mutual:
            return tape.row_attention(qkv, heads, self.scale, window=self.window, bias=bias)
        if not self.borrows:
            tape.write_kv(qkv, heads, self.layer)
        return tape.attention(
            qkv,
            self.heads,
            self.layer,
            self.scale,
            window=self.window,
            softcap=self.softcap,
            sinks=None if self.sinks is None else self.sinks.ref,
            borrows=self.borrows,
            bias=bias,
        )

    def _record_shared_norm(self, tape: Tape, qkv: Value) -> Value:
        """The norms over all query heads and all key heads, though this rank has only some of them."""
        assert self.head_norms is not None and self.share is not None, "ranks have heads that are normed together"
        size = self.heads.head_dim
        made: list[Value] = []
        first = 0
        for norm, own, each in zip(
            self.head_norms,
            (self.share.query, self.share.kv),
            zip(*((share.query.count * size, share.kv.count * size) for share in self.shares), strict=True),
            strict=True,
        ):
            part = tape.gather(tape.columns(qkv, first, own.count * size), each, everywhere=True)
            made.append(tape.columns(norm.record(tape, part), own.first * size, own.count * size))
            first += own.count * size
        values = tape.columns(qkv, first, qkv.width - first)
        return tape.concatenate(tape.concatenate(made[0], made[1]), values)

    def _rows(self, heads: int) -> HeadRows | None:
        """How rows of that number of heads stand in the files; None: as kernels turn them, in halves of a head."""
        if self.rope is None or (not self.paired and self.rope.columns == self.heads.head_dim):
            return None
        return HeadRows(heads, self.heads.head_dim, self.rope.columns, self.paired)
