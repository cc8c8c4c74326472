"""What a block's projections are given by calibration texts; of experts, what the rows are that each of them gets."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from penstock.compression.projections import Unit, matrices
from penstock.core.errors import ConfigurationError
from penstock.kernels.reference import gated
from penstock.layers.decoder import DecoderBlock
from penstock.layers.experts import MixtureOfExperts
from penstock.layers.weights import WeightSpec
from penstock.loading.quantized import Entry
from penstock.loading.tensors import read_tensor
from penstock.quantization.gptq import Hessian


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What one projection is given.

    Attributes:
        hessian: [inputs, inputs] as `Hessian.mean` gives it.
        largest: [inputs], the largest magnitudes.
        rows: how many inputs were seen.
    """

    hessian: Tensor
    largest: Tensor
    rows: int

    def divided(self, factors: Tensor) -> "Calibrated":
        """The same of inputs that are divided by `factors` [inputs]."""
        return Calibrated(self.hessian / factors / factors[:, None], self.largest / factors, self.rows)


@dataclass(frozen=True, slots=True)
class Rare:
    """Experts that too few rows of the texts were for.

    Attributes:
        projection: of all experts of a layer.
        experts: which of these are rounded without calibration.
        least: rows of the one that has fewest.
        needed: rows that the method needs.
        count: of all experts there.
    """

    projection: str
    experts: tuple[int, ...]
    least: int
    needed: int
    count: int


@dataclass(frozen=True, slots=True)
class _Routed:
    """What a layer of experts is given, text by text: inputs [rows, width], and whose each row is [rows, chosen]."""

    inputs: list[Tensor]
    chosen: list[Tensor]


class Watch:
    """Collects what a block's projections are given, by name; give it to a `BlockRunner`."""

    def __init__(self, names: Collection[str], dtype: torch.dtype) -> None:
        """`names` are of the projections that matter; `dtype` is what the rows of experts are kept in."""
        self._names, self._dtype = names, dtype
        self.found: dict[str, Hessian] = {}
        self.routed: dict[str, _Routed] = {}

    def linear(self, name: str, x: Tensor) -> None:
        """What a projection is given, [rows, inputs]."""
        if name not in self._names:
            return
        if name not in self.found:
            self.found[name] = Hessian(x.shape[1])
        self.found[name].add(x)

    def experts(self, name: str, x: Tensor, chosen: Tensor) -> None:
        """What gates and ups of that name are given [rows, width], and the experts of each row [rows, chosen]."""
        seen = self.routed.setdefault(name, _Routed([], []))
        seen.inputs.append(x.to(self._dtype, copy=True))
        seen.chosen.append(chosen.to(torch.int32))


class Inputs:
    """What the units of a block are given, with what is divided in them."""

    def __init__(
        self, block: DecoderBlock, entries: Mapping[str, Entry], watch: Watch | None, needed: Callable[[int], int]
    ) -> None:
        """`watch` has seen the texts; None: there are none. `needed` gives the rows that a number of inputs needs."""
        self._mixture = block.mixture
        self._entries, self._needed = entries, needed
        self._dense = {} if watch is None else {name: _mean(name, seen) for name, seen in watch.found.items()}
        self._x, self._chosen = None, None
        for seen in () if watch is None else watch.routed.values():
            self._x, self._chosen = torch.cat(seen.inputs), torch.cat(seen.chosen)
            seen.inputs.clear()
        self._factors: dict[tuple[str, int | None], Tensor] = {}
        self._current: tuple[int, dict[str, Calibrated]] | None = None

    def seen(self, unit: Unit) -> Calibrated | None:
        """What it is given, however little; None: nothing is known of it."""
        found = self._dense.get(unit.projection) if unit.expert is None else self._of_expert(unit.expert, unit)
        factors = self._factors.get((unit.projection, unit.expert))
        return found if found is None or factors is None else found.divided(factors)

    def enough(self, unit: Unit) -> Calibrated | None:
        """What it is given, where that is enough to round by; one projection that all rows pass gets all there are."""
        found = self.seen(unit)
        few = found is not None and unit.expert is not None and found.rows < self._needed(unit.inputs)
        return None if few else found

    def together(self, units: Collection[Unit]) -> Calibrated | None:
        """What units that read the same are given; all experts of a layer, what it is given."""
        first, *others = units
        if not others or first.expert is None:
            return self.enough(first)
        if self._x is None:
            return None
        return _calibrated(first.projection, self._x)

    def divide(self, unit: Unit, factors: Tensor) -> None:
        """Have what it is given divided by `factors` [inputs]."""
        self._factors[unit.projection, unit.expert] = factors

    def rare(self, block: DecoderBlock) -> tuple[Rare, ...]:
        """The experts that have not enough."""
        if self._chosen is None or self._mixture is None:
            return ()
        count = self._mixture.routing.experts
        rows = torch.bincount(self._chosen.flatten(), minlength=count).tolist()
        found = []
        for spec in matrices(block):
            needed = self._needed(spec.shape[1])
            few = tuple(expert for expert in range(count) if rows[expert] < needed)
            if spec.experts > 1 and few:
                found.append(Rare(spec.name, few, min(rows), needed, count))
        return tuple(found)

    def _of_expert(self, expert: int, unit: Unit) -> Calibrated | None:
        if self._x is None or self._chosen is None:
            return None
        # An expert's units follow one another.
        if self._current is None or self._current[0] != expert:
            assert self._mixture is not None, "experts are of a mixture"
            x = self._x[(self._chosen == expert).any(1)].float()
            found = {}
            if len(x):
                inner = _hidden(self._mixture, expert, x, self._entries)
                given = {self._mixture.gate_up.name: x, self._mixture.down.name: inner}
                found = {name: _calibrated(f"{name}, expert {expert}", rows) for name, rows in given.items()}
            self._current = expert, found
        return self._current[1].get(unit.projection)


def _calibrated(name: str, rows: Tensor) -> Calibrated:
    seen = Hessian(rows.shape[1])
    seen.add(rows)
    return _mean(name, seen)


def _mean(name: str, seen: Hessian) -> Calibrated:
    try:
        return Calibrated(seen.mean(), seen.largest, seen.rows)
    except ValueError as error:
        raise ConfigurationError(f"{name} cannot be calibrated: {error}") from None


def _hidden(mixture: MixtureOfExperts, expert: int, x: Tensor, entries: Mapping[str, Entry]) -> Tensor:
    """What an expert's gate makes of x [rows, width], and its way back reads: [rows, inner width]."""

    def read(spec: WeightSpec) -> Tensor:
        return torch.cat([read_tensor(entries[part.name]).float() for part in spec.of_expert(expert).parts])

    bias = None if mixture.biases is None else read(mixture.biases[1])
    return gated(F.linear(x, read(mixture.gate_up), bias), mixture.activation)
