"""The feed-forward layer as a mixture of experts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from penstock.core.errors import ConfigurationError
from penstock.core.shares import Placement, Share, TensorRank, shares
from penstock.kernels.signature import GateName, Routing
from penstock.kernels.tape import Tape, Value
from penstock.layers.linear import Linear
from penstock.layers.mlp import GatedMlp
from penstock.layers.norm import RmsNorm
from penstock.layers.weights import HeadCut, HeadRows, WeightPart, WeightRole, WeightSpec


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """What tensors are called in a checkpoint, behind the layer's name.

    Attributes:
        router: the projection that chooses.
        gate, up, down: of an expert, with its index in the place of {}.
        both: of an expert's gates and ups where they are one tensor, whose rows take turns; empty: they are two.
        halves: the same where rows of gates come first.
    """

    router: str = "gate"
    gate: str = "experts.{}.gate_proj"
    up: str = "experts.{}.up_proj"
    down: str = "experts.{}.down_proj"
    both: str = ""
    halves: str = ""


class _Part(NamedTuple):
    """A tensor of each expert: its name with {} for the expert, its rows, their order in the file, and which it is."""

    name: str
    rows: int
    order: HeadRows | None = None
    cut: HeadCut | None = None
    share: Share | None = None

    def of(self, share: Share | None) -> "_Part":
        """These rows of it."""
        return self if share is None else self._replace(rows=share.count, share=share)


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """A router sends each row to a few experts, gated MLPs whose results it adds up (Shazeer et al., 2017).

    Attributes:
        width, inner_width: columns of the residual stream, and of an expert's hidden layer.
        correction: name of the tensor that scores are corrected by where experts are chosen; None: there is none.
        shared: an expert that each row has beside those that it is routed to.
        biased: whether router and experts have biases.
        scales: name of the tensor with what each expert's weight is multiplied by in the end; None: there is none.
        shared_gate: name of a projection to one column, by whose sigmoid the shared expert's result is multiplied.
        share: the columns of each expert's hidden layer that this rank has; None: all.
        placement: which experts this and other groups of ranks have; None: it has all.
    """

    name: str
    width: int
    inner_width: int
    routing: Routing
    activation: GateName
    names: ExpertNames = ExpertNames()
    correction: str | None = None
    shared: GatedMlp | None = None
    shared_gate: str | None = None
    biased: bool = False
    scales: str | None = None
    share: Share | None = None
    placement: Placement | None = None

    def of_rank(self, rank: TensorRank) -> "MixtureOfExperts":
        """What one of several ranks has of it: some experts, or some columns of each one's hidden layer, or both.

        Raises ConfigurationError where there are fewer experts than groups of ranks.
        """
        count = self.routing.experts
        if count < rank.experts:
            raise ConfigurationError(
                f"--expert-parallel-size is {rank.experts}, but layers have {count} experts; take {count} or fewer."
            )
        placement = None if rank.experts == 1 else rank.placement(self.name, count)
        within = rank.within
        share = None if within.size == 1 else shares(self.inner_width, within.size, within.unit)[within.rank]
        shared = None if self.shared is None else self.shared.of_rank(rank)
        return replace(self, share=share, placement=placement, shared=shared)

    @property
    def experts(self) -> Sequence[int]:
        """Those that it has, by their index, ascending."""
        return range(self.routing.experts) if self.placement is None else self.placement.held

    @property
    def parameters_of_one(self) -> int:
        """How many numbers an expert's matrices have."""
        return 3 * self.width * self.inner_width

    @property
    def router(self) -> WeightSpec:
        """The matrix [experts, width] that chooses."""
        part = WeightPart(f"{self.name}.{self.names.router}.weight", (self.routing.experts, self.width))
        return WeightSpec(part.tensor, (part,), "router")

    @property
    def correction_weight(self) -> WeightSpec | None:
        """The vector [experts] that is added to scores, or None."""
        return None if self.correction is None else self._of_each(self.correction, 0.0)

    @property
    def scale_weight(self) -> WeightSpec | None:
        """The vector [experts] that their weights are multiplied by, or None."""
        return None if self.scales is None else self._of_each(self.scales, 1.0)

    @property
    def gate_up(self) -> WeightSpec:
        """Gates and ups of all experts, [experts · 2 · inner_width, width]."""
        return self._stacked("gate_up_proj", self._gates_and_ups, self.width, "linear")

    @property
    def down(self) -> WeightSpec:
        """The ways back of all experts, [experts · width, inner_width]."""
        inner = self.inner_width if self.share is None else self.share.count
        return self._stacked("down_proj", (_Part(self.names.down, self.width),), inner, "linear", over=self.share)

    @property
    def biases(self) -> tuple[WeightSpec, WeightSpec, WeightSpec | None] | None:
        """Of the router [experts], of gates and ups, and of the ways back, which are as long as these have rows.

        Of several ranks, the first adds what is behind the ways back.
        """
        if not self.biased:
            return None
        adds = self.share is None or self.share.first == 0
        part = WeightPart(f"{self.name}.{self.names.router}.bias", (self.routing.experts,))
        return (
            WeightSpec(part.tensor, (part,), "router", neutral=0.0),
            self._stacked("gate_up_proj", self._gates_and_ups, None, "bias"),
            self._stacked("down_proj", (_Part(self.names.down, self.width),), None, "bias") if adds else None,
        )

    @property
    def shared_gating(self) -> Linear | None:
        """The projection whose sigmoid the shared expert is multiplied by, or None."""
        if self.shared_gate is None:
            return None
        name = f"{self.name}.{self.shared_gate}"
        return Linear(name, self.width, ((name, 1),))

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All weights that the layer reads."""
        shared, gating = self.shared, self.shared_gating
        vectors = (self.correction_weight, self.scale_weight)
        return (
            self.router,
            *(vector for vector in vectors if vector is not None),
            self.gate_up,
            self.down,
            *(bias for bias in self.biases or () if bias is not None),
            *(() if shared is None else shared.weights),
            *(() if gating is None else gating.weights),
        )

    def record(self, tape: Tape, x: Value, by: Value | None = None) -> Value:
        """x [rows, width] → [rows, width]; experts are chosen by x, or `by` something else, [rows, width].

        Of several ranks, it is what this one adds to their sum.
        """
        correction, scales = (
            None if vector is None else vector.ref for vector in (self.correction_weight, self.scale_weight)
        )
        bias, biases = None, None
        if self.biases is not None:
            of_router, of_gates, of_ways_back = self.biases
            bias, biases = of_router.ref, (of_gates.ref, None if of_ways_back is None else of_ways_back.ref)
        routed = tape.route(x if by is None else by, self.router.ref, self.routing, bias, correction, scales)
        weights, count = (self.gate_up.ref, self.down.ref), len(self.experts)
        mixed = tape.experts(x, routed, *weights, count, self.activation, biases, self.placement)
        if self.shared is None:
            return mixed
        shared = self.shared.record(tape, x)
        if self.shared_gating is not None:
            shared = tape.sigmoid_gate(shared, self.shared_gating.record(tape, x))
        return tape.add(mixed, shared)

    def _of_each(self, name: str, neutral: float) -> WeightSpec:
        """A vector with a number for each expert, which belongs to the router."""
        part = WeightPart(f"{self.name}.{name}", (self.routing.experts,))
        return WeightSpec(part.tensor, (part,), "router", neutral=neutral)

    @property
    def _gates_and_ups(self) -> tuple[_Part, ...]:
        inner, rows, share = self.inner_width, 2 * self.inner_width, self.share
        if self.names.halves:
            cuts = HeadCut(1, rows, 0, inner), HeadCut(1, rows, inner, inner)
            halves = _Part(self.names.halves, inner, cut=cuts[0]), _Part(self.names.halves, inner, cut=cuts[1])
            return halves[0].of(share), halves[1].of(share)
        if not self.names.both:
            return _Part(self.names.gate, inner).of(share), _Part(self.names.up, inner).of(share)
        both = _Part(self.names.both, rows, HeadRows(1, rows, rows, paired=True))
        return (both,) if share is None else (both.of(share.behind(0, rows)), both.of(share.behind(inner, rows)))

    def _stacked(
        self, name: str, each: tuple[_Part, ...], columns: int | None, role: WeightRole, over: Share | None = None
    ) -> WeightSpec:
        """Tensors of all experts, one below the other: matrices, or biases where there are no columns."""
        kind, routing = "weight" if columns else "bias", self.routing
        parts = tuple(
            WeightPart(
                f"{self.name}.{part.name.format(expert)}.{kind}",
                (part.rows, columns) if columns else (part.rows,),
                part.order,
                part.cut,
                part.share,
                over,
            )
            for expert in self.experts
            for part in each
        )
        neutral = None if columns else 0.0
        chosen = min(routing.chosen, len(self.experts))
        return WeightSpec(f"{self.name}.experts.{name}.{kind}", parts, role, neutral, len(self.experts), chosen)


@dataclass(frozen=True, slots=True)
class DenseBesideExperts:
    """An MLP for every row and experts beside it, each with norms of its own before and behind (Gemma 4, 2026).

    Attributes:
        router_norm: of what experts are chosen by, which is then divided by the root of its width.
        summed_by_ranks: whether several ranks have parts of both, whose results are added.
    """

    dense: GatedMlp
    experts: MixtureOfExperts
    before_dense: RmsNorm
    after_dense: RmsNorm
    before_experts: RmsNorm
    after_experts: RmsNorm
    router_norm: RmsNorm
    summed_by_ranks: bool = False

    def of_rank(self, rank: TensorRank) -> "DenseBesideExperts":
        """What one of several ranks has of it."""
        dense, experts = self.dense.of_rank(rank), self.experts.of_rank(rank)
        return replace(self, dense=dense, experts=experts, summed_by_ranks=True)

    @property
    def activation(self) -> GateName:
        """What both make of their gates."""
        return self.dense.activation

    @property
    def inner_width(self) -> int:
        """Columns of the dense MLP's hidden layer."""
        return self.dense.inner_width

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All weights that the layer reads."""
        norms = (self.before_dense, self.after_dense, self.before_experts, self.after_experts, self.router_norm)
        return (*(norm.weight for norm in norms), *self.dense.weights, *self.experts.weights)

    def record(self, tape: Tape, x: Value) -> Value:
        """The residual stream [rows, width] → what both add to it, [rows, width]."""
        dense = self.dense.record(tape, self.before_dense.record(tape, x))
        dense = self.after_dense.record(tape, self._summed(tape, dense))
        by = tape.scale(self.router_norm.record(tape, x), x.width**-0.5)
        mixed = self.experts.record(tape, self.before_experts.record(tape, x), by)
        return tape.add(dense, self.after_experts.record(tape, self._summed(tape, mixed)))

    def _summed(self, tape: Tape, x: Value) -> Value:
        return tape.all_reduce(x) if self.summed_by_ranks else x
