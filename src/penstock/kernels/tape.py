"""A model recorded once as a list of operations in single-assignment form; torch is not needed to record it."""

from dataclasses import dataclass

from penstock.core.shares import Placement, Stripe
from penstock.kernels.collective import AllReduce, Gather, GatherRows, MergeStripes, ShareRows
from penstock.kernels.places import BucketBias, RopeSpec, Sines, WeightRef
from penstock.kernels.signature import (
    Activation,
    Add,
    AddRmsNorm,
    Attention,
    Columns,
    Concatenate,
    Embedding,
    Experts,
    GatedActivation,
    GateName,
    HeadLayout,
    HeadLinear,
    HeadNorm,
    LayerNorm,
    Linear,
    Operation,
    PlainActivationName,
    Positions,
    QueryScale,
    RmsNorm,
    Rotary,
    Route,
    Routing,
    RowAttention,
    Scale,
    SelectRows,
    SigmoidGate,
    Sinusoids,
    SoftCap,
    SourceAttention,
    Types,
    WriteKV,
)


@dataclass(frozen=True, slots=True)
class Value:
    """A matrix that the program computes.

    `index` is unique in its tape and `width` is its columns. It has a row for each token of the step, or, where it is
    `selected`, for each token whose logits are wanted, or, where it has a `stripe`, for each of its share of tokens
    (`Stripe.rows`). Where it is `exact`, it is float32 whatever the model is.
    """

    index: int
    width: int
    selected: bool = False
    exact: bool = False
    stripe: Stripe | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One recorded operation with the values it reads and makes."""

    operation: Operation
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


class Tape:
    """Records operations in order. Each method appends one and returns its result; widths are checked as it goes.

    Where ranks have stripes of contexts, they share out rows as well: each computes its share, and is given those of
    the others where an operation needs all of a sequence.
    """

    def __init__(self, stripe: Stripe | None = None) -> None:
        """`stripe` is what this rank keeps of contexts; None: all of them."""
        self._stripe = stripe
        self._steps: list[Step] = []
        self._values = 0
        self._given: list[Value] = []
        self._results: tuple[Value, ...] = ()
        # Of values that are shared out, all rows, where they have been put together.
        self._whole: dict[Value, Value] = {}

    @property
    def steps(self) -> tuple[Step, ...]:
        """Everything recorded so far, in order."""
        return tuple(self._steps)

    @property
    def given(self) -> tuple[Value, ...]:
        """The values that the program's caller brings, in order."""
        return tuple(self._given)

    @property
    def results(self) -> tuple[Value, ...]:
        """The values that the program returns; raises ValueError where none were set."""
        if not self._results:
            raise ValueError("The tape has no result; call finish() with the logits.")
        return self._results

    def finish(self, *results: Value) -> None:
        """Make `results` what the program returns: all rows of them."""
        self._results = tuple(self._all_rows(value) for value in results)

    def input(self, width: int, *, selected: bool = False) -> Value:
        """A value that is given to the program with each step, of `width` columns."""
        value = self._new(width, selected)
        self._given.append(value)
        return value

    def embedding(self, weight: WeightRef, width: int, *, first: int = 0, ids: int | None = None) -> Value:
        """Rows of an embedding matrix of `width` columns for the step's tokens; or those that a part of it has."""
        return self._append(Embedding(weight, first, ids), (), width)

    def positions(self, weight: WeightRef, width: int) -> Value:
        """Rows of a matrix of `width` columns for the tokens' positions."""
        return self._append(Positions(weight), (), width)

    def sinusoids(self, sines: Sines) -> Value:
        """Sines and cosines of the tokens' positions."""
        return self._append(Sinusoids(sines), (), sines.width)

    def types(self, weight: WeightRef, width: int) -> Value:
        """Rows of a matrix of `width` columns for the tokens' types."""
        return self._append(Types(weight), (), width)

    def linear(self, x: Value, weight: WeightRef, width: int, bias: WeightRef | None = None) -> Value:
        """A projection to `width` columns."""
        return self._append(Linear(weight, bias), (x,), width)

    def head_linear(self, x: Value, weight: WeightRef, heads: int, width: int) -> Value:
        """What each head's matrix makes of its columns, `width` columns in all."""
        _expect_heads(x, heads)
        return self._append(HeadLinear(weight, heads), (x,), width)

    def rms_norm(self, x: Value, weight: WeightRef, eps: float, *, unit_offset: bool = False) -> Value:
        """Record the RMS norm of each row, times the weight."""
        return self._append(RmsNorm(weight, eps, unit_offset), (x,), x.width)

    def layer_norm(self, x: Value, weight: WeightRef, eps: float, bias: WeightRef | None = None) -> Value:
        """Record each row less its mean, by its deviation, times the weight, and with the bias."""
        return self._append(LayerNorm(weight, eps, bias), (x,), x.width)

    def add_rms_norm(
        self, x: Value, residual: Value, weight: WeightRef, eps: float, *, unit_offset: bool = False
    ) -> tuple[Value, Value]:
        """Add `x` to the residual stream and normalise: (normalised, new residual)."""
        _same_width(x, residual)
        x, residual = self._alike(x, residual)
        normed, total = (self._new(x.width, x.selected, stripe=x.stripe) for _ in range(2))
        self._steps.append(Step(AddRmsNorm(weight, eps, unit_offset), (x, residual), (normed, total)))
        return normed, total

    def head_norm(
        self,
        qkv: Value,
        heads: HeadLayout,
        query: WeightRef,
        key: WeightRef,
        eps: float,
        *,
        unit_offset: bool = False,
        whole: bool = False,
        values: bool = False,
    ) -> Value:
        """Normalise each query and key head, or all of them together where they are `whole`; or values as well."""
        _expect_width(qkv, heads.fused_width)
        if whole and values:
            raise ValueError("Values are normed head by head, so that queries and keys must be, too.")
        return self._append(HeadNorm(heads, query, key, eps, unit_offset, whole, values), (qkv,), qkv.width)

    def rotary(self, qkv: Value, heads: HeadLayout, rope: RopeSpec) -> Value:
        """Rotate query and key heads by position."""
        _expect_width(qkv, heads.fused_width)
        return self._append(Rotary(heads, rope), (qkv,), qkv.width)

    def query_scale(self, qkv: Value, heads: HeadLayout, beta: float, context: int) -> Value:
        """Multiply query heads by what their positions are worth."""
        _expect_width(qkv, heads.fused_width)
        return self._append(QueryScale(heads, beta, context), (qkv,), qkv.width)

    def write_kv(self, qkv: Value, heads: HeadLayout, layer: int) -> None:
        """Store this step's keys and values of layer `layer`, which must be those of all tokens."""
        _expect_width(qkv, heads.fused_width)
        if qkv.selected:
            raise ValueError(f"Layer {layer} must store all tokens, and rows were selected before it.")
        qkv = self._all_rows(qkv)
        self._steps.append(Step(WriteKV(heads, layer, self._stripe), (qkv,), ()))

    def attention(
        self,
        qkv: Value,
        heads: HeadLayout,
        layer: int,
        scale: float,
        *,
        window: int | None = None,
        softcap: float | None = None,
        sinks: WeightRef | None = None,
        borrows: bool = False,
        bias: BucketBias | None = None,
    ) -> Value:
        """Attend over the stored context; this step's keys and values must have been written before.

        A layer that `borrows` them is given its queries alone. Of several ranks' stripes, they are all of them.
        """
        own = None if self._stripe is not None else sinks
        operation = Attention(heads, layer, scale, window, softcap, own, borrows, bias, self._stripe)
        _expect_width(qkv, operation.row_width)
        if self._stripe is None:
            return self._append(operation, (qkv,), heads.query_width)
        qkv = self._all_rows(qkv)
        part = self._new(operation.made_width, qkv.selected, exact=True)
        self._steps.append(Step(operation, (qkv,), (part,)))
        rows = None if part.selected else self._stripe
        parts = self.gather(part, (part.width,) * self._stripe.size, everywhere=True, stripe=rows)
        merge = MergeStripes(heads.query_heads, heads.head_dim, self._stripe.size, sinks)
        return self._append(merge, (parts,), heads.query_width)

    def source_attention(self, query: Value, heads: HeadLayout, layer: int, scale: float) -> Value:
        """Attend to all tokens of the row's source, whose keys and values layer `layer` has."""
        _expect_width(query, heads.query_width)
        return self._append(SourceAttention(heads, layer, scale), (self._all_rows(query),), heads.query_width)

    def row_attention(
        self,
        qkv: Value,
        heads: HeadLayout,
        scale: float,
        *,
        window: int | None = None,
        bias: BucketBias | None = None,
    ) -> Value:
        """Attend to all tokens of the row, before and behind, or within a window on both sides."""
        _expect_width(qkv, heads.fused_width)
        if qkv.selected:
            raise ValueError("Attention within rows must see all tokens, and rows were selected before it.")
        return self._append(RowAttention(heads, scale, window, bias), (qkv,), heads.query_width)

    def gated_activation(self, gate_up: Value, activation: GateName) -> Value:
        """activation(gate) · up of a fused [gate | up]."""
        if gate_up.width % 2:
            raise ValueError(f"A fused gate and up of {gate_up.width} columns cannot be halved.")
        return self._append(GatedActivation(activation), (gate_up,), gate_up.width // 2)

    def sigmoid_gate(self, x: Value, gate: Value) -> Value:
        """Record x · sigmoid(gate), the gate having one column, or a column for each of x."""
        if gate.width not in (1, x.width):
            raise ValueError(f"A gate of {gate.width} columns does not fit a value of {x.width}.")
        return self._append(SigmoidGate(), (x, gate), x.width)

    def route(
        self,
        x: Value,
        weight: WeightRef,
        routing: Routing,
        bias: WeightRef | None = None,
        correction: WeightRef | None = None,
        scales: WeightRef | None = None,
    ) -> Value:
        """Choose experts for each row: their indices, and beside them their weights."""
        output = self._new(2 * routing.chosen, x.selected, exact=True, stripe=x.stripe)
        self._steps.append(Step(Route(weight, routing, bias, correction, scales), (x,), (output,)))
        return output

    def experts(
        self,
        x: Value,
        routed: Value,
        gate_up: WeightRef,
        down: WeightRef,
        experts: int,
        activation: GateName,
        biases: tuple[WeightRef, WeightRef | None] | None = None,
        placement: Placement | None = None,
    ) -> Value:
        """What the experts of each row make of it, added up; `biases` are of gates and ups, and of the ways back.

        Where others have others, `placement` says which these are.
        """
        of_gates, of_ways_back = biases or (None, None)
        operation = Experts(gate_up, down, experts, activation, of_gates, of_ways_back, placement)
        return self._append(operation, (x, routed), x.width)

    def activation(self, x: Value, activation: PlainActivationName) -> Value:
        """Record an activation of each element."""
        return self._append(Activation(activation), (x,), x.width)

    def add(self, x: Value, y: Value) -> Value:
        """Record x + y, both of the same width."""
        _same_width(x, y)
        return self._append(Add(), (x, y), x.width)

    def concatenate(self, x: Value, y: Value, heads: int = 1) -> Value:
        """Record the columns of y beside those of x, or those of each of its heads."""
        _expect_heads(x, heads)
        _expect_heads(y, heads)
        return self._append(Concatenate(heads), (x, y), x.width + y.width)

    def columns(self, x: Value, first: int, count: int, heads: int = 1) -> Value:
        """Record some columns of each of the heads of x."""
        _expect_heads(x, heads)
        if not 0 <= first < first + count <= x.width // heads:
            raise ValueError(f"Heads of {x.width // heads} columns have none from {first} to {first + count}.")
        return self._append(Columns(heads, first, count), (x,), heads * count)

    def scale(self, x: Value, factor: float | WeightRef, *, rounded: bool = False) -> Value:
        """Record the product with a factor, which may be rounded to the type of x first."""
        return self._append(Scale(factor, rounded), (x,), x.width)

    def soft_cap(self, x: Value, cap: float) -> Value:
        """Bound smoothly to (-cap, cap)."""
        return self._append(SoftCap(cap), (x,), x.width)

    def select_rows(self, x: Value) -> Value:
        """Keep the rows whose logits are wanted."""
        output = self._new(x.width, selected=True)
        self._steps.append(Step(SelectRows(x.stripe), (x,), (output,)))
        # A row is in one rank, and others have zeros.
        return self.all_reduce(output) if x.stripe is not None else output

    def all_reduce(self, x: Value) -> Value:
        """Record the sum of what all ranks have."""
        return self._append(AllReduce(), (x,), x.width)

    def gather(
        self, x: Value, widths: tuple[int, ...], *, everywhere: bool = False, stripe: Stripe | None = None
    ) -> Value:
        """Record the columns of all ranks, whose numbers are `widths`; in the first rank, or in all.

        With a `stripe`, of the rows of its share alone.
        """
        if x.width not in widths:
            raise ValueError(f"A rank has {x.width} columns, and ranks have {', '.join(map(str, widths))}.")
        whole = self._new(sum(widths), x.selected, exact=x.exact, stripe=stripe or x.stripe)
        self._steps.append(Step(Gather(widths, everywhere, stripe), (x,), (whole,)))
        return whole

    def _append(self, operation: Operation, inputs: tuple[Value, ...], width: int) -> Value:
        inputs = self._alike(*inputs)
        stripe = inputs[0].stripe if inputs else None
        output = self._new(width, any(each.selected for each in inputs), stripe=stripe)
        self._steps.append(Step(operation, inputs, (output,)))
        # What begins with tokens, and not with what others made, is shared out at once.
        return output if inputs else self._own_rows(output)

    def _new(self, width: int, selected: bool, *, exact: bool = False, stripe: Stripe | None = None) -> Value:
        value = Value(self._values, width, selected, exact, stripe)
        self._values += 1
        return value

    def _alike(self, *values: Value) -> tuple[Value, ...]:
        """The same values, all of them with this rank's rows alone where one of them is."""
        return tuple(map(self._own_rows, values)) if any(value.stripe is not None for value in values) else values

    def _own_rows(self, x: Value) -> Value:
        """The rows of this rank's share, where rows are shared out."""
        if self._stripe is None or x.selected or x.stripe is not None:
            return x
        own = self._new(x.width, False, exact=x.exact, stripe=self._stripe)
        self._steps.append(Step(ShareRows(self._stripe), (x,), (own,)))
        self._whole[own] = x
        return own

    def _all_rows(self, x: Value) -> Value:
        """The rows of all ranks."""
        if x.stripe is None:
            return x
        if x not in self._whole:
            self._whole[x] = self._new(x.width, False, exact=x.exact)
            self._steps.append(Step(GatherRows(x.stripe), (x,), (self._whole[x],)))
        return self._whole[x]


def _same_width(left: Value, right: Value) -> None:
    if left.width != right.width:
        raise ValueError(f"Values of {left.width} and {right.width} columns cannot be added.")


def _expect_heads(value: Value, heads: int) -> None:
    if value.width % heads:
        raise ValueError(f"A value of {value.width} columns has no {heads} equal heads.")


def _expect_width(value: Value, width: int) -> None:
    if value.width != width:
        raise ValueError(f"A fused projection of {width} columns is needed here, not of {value.width}.")
