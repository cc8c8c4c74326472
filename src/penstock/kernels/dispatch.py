"""Which implementation carries out an operation: the first that fits, with the reasons why others do not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from penstock.core.errors import ConfigurationError
from penstock.core.shares import Stripe
from penstock.kernels.batch import StepBatch
from penstock.kernels.packing import Weight
from penstock.kernels.places import RopeSpec, WeightRef
from penstock.kernels.ranks import Ranks
from penstock.kernels.rope import RopeTable
from penstock.kernels.signature import Operation, Scale
from penstock.kernels.tape import Value

KVLayout = Literal["slots", "tiles"]
"""How a plane of the cache is laid out: [slots, KV heads, head_dim], or as native/src/kv.hpp says."""


Planes = Mapping[str, Tensor]
"""What a layer keeps, by name: [num_blocks, block_size, …] of planes with an entry for each token.

A block's entries are contiguous. From one block to the next it is as far for all planes of a layer, and farther than a
plane's own entries reach: other planes and layers lie between.
"""


class KVPlanes(Protocol):
    """The arrays in which operations store keys and values and read them; the runtime owns them."""

    @property
    def layout(self) -> KVLayout:
        """How all planes are laid out."""
        ...

    def planes(self, layer: int) -> Planes:
        """`key` and `value` of `layer`, each [num_blocks, block_size, kv_heads, head_dim].

        Bytes (`kernels.kv_bytes`) have `key_scale` and `value_scale` beside them, [num_blocks, block_size, kv_heads],
        and where two values share a byte [num_blocks, block_size, kv_heads, 2 · groups], and half the bytes.

        Where the layout is not "slots", the shape says how much memory there is, and nothing of its order in a block.
        """
        ...

    def table_of(self, layer: int) -> int:
        """Index of the layer's block table in `StepBatch.block_tables`."""
        ...


class StepState:
    """One step as operations see it: the batch, and what is computed once a step for all layers in `memo`."""

    __slots__ = ("_selected", "_share", "batch", "memo")

    def __init__(self, batch: StepBatch) -> None:
        self.batch = batch
        self.memo: dict[object, Any] = {}
        self._selected: StepState | None = None
        self._share: StepState | None = None

    @property
    def selected(self) -> "StepState":
        """The same of the tokens whose logits are wanted."""
        if self._selected is None:
            batch = self.batch.selected
            self._selected = self if batch is self.batch else StepState(batch)
        return self._selected

    def of_share(self, stripe: Stripe) -> "StepState":
        """The same of the tokens of a rank's share, for what has to know their positions alone."""
        if self._share is None:
            rows = stripe.rows(len(self.batch.token_ids))
            of_rows = replace(self.batch, token_ids=self.batch.token_ids[rows], positions=self.batch.positions[rows])
            self._share = StepState(of_rows)
        return self._share

    def stored(self, values: Tensor) -> Tensor:
        """What goes to the slots: the rows of `values` [tokens, width], then those of tokens that are shared, again."""
        shared = self.batch.shared[::2]
        return torch.cat((values, values[shared])) if len(shared) else values

    def slots(self, table: int) -> tuple[Tensor, Tensor]:
        """Where keys and values of this step go by one of the block tables: the block of each, and its place there.

        Each is int64 [tokens + shares].
        """
        slots: tuple[Tensor, Tensor] | None = self.memo.get(("slots", table))
        if slots is None:
            batch, size = self.batch, self.batch.block_size
            rows = torch.arange(len(batch.query_lengths)).repeat_interleave(torch.tensor(batch.query_lengths))
            rows, places = torch.cat((rows, batch.shared[1::2])), self.stored(batch.positions)
            if batch.dropped:
                places = places - torch.from_numpy(batch.dropped[table])[rows]
            slots = batch.block_tables[table][rows, places // size].long(), places % size
            self.memo["slots", table] = slots
        return slots


Kernel = Callable[..., Any]
"""(StepState, input tensors …) → the output tensor, a tuple of them where there are several, None where none."""


@runtime_checkable
class Decodes(Protocol):
    """A kernel that is a whole model, from token ids to logits, and can go on by itself."""

    def decode(
        self, batch: StepBatch, tokens: Sequence[int], ranks: Sequence[int], choices: Sequence[Any], *given: Tensor
    ) -> list[tuple[list[int], list[float]]]:
        """For each row `tokens` tokens, chosen as the fields of its `sampling.choice.Choice` say.

        Where something is `given` beside the first tokens, what it makes of that is given to the next step. A row has
        `ranks` ids for each token, all in one list: the token, and what would be chosen if those before were not there,
        -1 where nothing would be; and beside them their probabilities by the logits alone.
        """
        ...


@runtime_checkable
class Prepares(Protocol):
    """A kernel that can make itself faster while no request waits."""

    def use_idle_time(self) -> bool:
        """Do a piece of that, which takes less than a tenth of a second; whether more is left."""
        ...


class Fusible(Protocol):
    """What an implementation may make of an operation instead of a kernel: a part of one, with those beside it."""

    @staticmethod
    def fuse(
        steps: "Sequence[FusedStep]", given: Sequence[Value], wanted: Sequence[Value], dtype: torch.dtype
    ) -> Kernel:
        """One kernel that carries out all `steps` in order; it takes `given` and returns `wanted`, in `dtype`.

        `given` are the values that steps read and none of them makes.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class FusedStep:
    """One operation among those that become one kernel: a fusible `part`, with the values that it reads and makes."""

    part: Any
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """What an operation is bound to when a program is compiled.

    Attributes:
        weights: every weight of the model by name.
        kv: where keys and values are stored.
        dtype: type of values and of cos and sin.
        reusable: for each input, whether nothing reads it afterwards, so that it may be overwritten.
        rope_tables: tables made so far; layers with the same frequencies share one.
        selected: whether an operation that has to know where its rows are is given those whose logits are wanted. A
            kernel is then called with the state of these, a fused one with that of the whole step.
        ranks: those that compute the model together; None: this process computes alone.
        stripe: where it is given the rows of a rank's share, which that is; None: it is given all.
    """

    weights: Mapping[str, Weight]
    kv: KVPlanes
    dtype: torch.dtype
    reusable: tuple[bool, ...] = ()
    rope_tables: dict[RopeSpec, RopeTable] = field(default_factory=dict)
    selected: bool = False
    ranks: Ranks | None = None
    stripe: Stripe | None = None

    def weight(self, ref: WeightRef) -> Weight:
        """The weight that `ref` names, packed or not."""
        return self.weights[ref.name]

    def tensor(self, ref: WeightRef) -> Tensor:
        """The weight that `ref` names, which must not be packed."""
        weight = self.weights[ref.name]
        if not isinstance(weight, Tensor):
            raise TypeError(f"{ref.name} is packed, but a plain tensor is needed.")
        return weight

    def rope_table(self, spec: RopeSpec) -> RopeTable:
        """The table of cosines and sines for `spec`."""
        if spec not in self.rope_tables:
            self.rope_tables[spec] = RopeTable(spec, self.dtype)
        return self.rope_tables[spec]


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to carry out one operation.

    Attributes:
        name: unique among those of the operation.
        operation: the signature's class.
        row_function: whether each row's result depends on that row alone, bit for bit.
        supports: (operation, binding) → None where it fits, else the reason why not.
        prepare: (operation, binding) → the function that runs each step, or what becomes a part of one.
    """

    name: str
    operation: type[Operation]
    row_function: bool
    supports: Callable[[Any, Binding], str | None]
    prepare: Callable[[Any, Binding], Kernel | Fusible]


@dataclass(frozen=True, slots=True)
class Dispatched:
    """What was chosen for `count` operations of one kind, and why those before it in the order were not."""

    operation: str
    implementation: str
    row_function: bool
    rejected: tuple[tuple[str, str], ...]
    count: int


def fits_always(_operation: Operation, _binding: Binding) -> str | None:
    """`supports` of an implementation without conditions."""
    return None


def scale_factor(op: Scale, binding: Binding) -> float:
    """What a value is multiplied by, rounded where the operation says so."""
    factor = float(binding.tensor(op.factor)) if isinstance(op.factor, WeightRef) else op.factor
    return float(torch.tensor(factor, dtype=binding.dtype)) if op.rounded else factor


def overwrites_input(_operation: Operation, binding: Binding) -> str | None:
    """`supports` of an implementation that turns the fused projection into its result in place."""
    return None if binding.reusable[0] else "the fused projection is needed afterwards and cannot be overwritten"


class Dispatcher:
    """Takes the first implementation that fits, in the order given, and remembers what it took and why."""

    def __init__(self, implementations: Sequence[Implementation]) -> None:
        self._implementations = tuple(implementations)
        self._choices: dict[tuple[str, str, bool, tuple[tuple[str, str], ...]], int] = {}

    def choose(self, operation: Operation, binding: Binding) -> Implementation:
        """The implementation for `operation`; raises ConfigurationError where none fits."""
        rejected: list[tuple[str, str]] = []
        for candidate in self._implementations:
            if candidate.operation is not type(operation):
                continue
            reason = candidate.supports(operation, binding)
            if reason is None:
                key = (operation.op, candidate.name, candidate.row_function, tuple(rejected))
                self._choices[key] = self._choices.get(key, 0) + 1
                return candidate
            rejected.append((candidate.name, reason))
        reasons = "; ".join(f"{name}: {reason}" for name, reason in rejected) or "there is no implementation"
        raise ConfigurationError(f"No kernel carries out {operation} here ({reasons}).")

    def report(self) -> tuple[Dispatched, ...]:
        """Every choice made so far, in the order of first use."""
        return tuple(Dispatched(*key, count) for key, count in self._choices.items())
