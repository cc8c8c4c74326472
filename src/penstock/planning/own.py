"""A machine that was measured: what `penstock calibrate` writes, and plans take as their hardware."""

from collections.abc import Sequence

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.planning import priors
from penstock.planning.calibration import Basis, interval_of
from penstock.planning.efficiency import Efficiency
from penstock.planning.hardware import Device
from penstock.planning.latency import Deployment, MeasuredStep
from penstock.planning.processors import PROCESSOR
from penstock.planning.rank_costs import RankCosts

# The least interval that is told.
_LEAST = 0.05
# With fewer, what is left out says nothing of the rest.
_LEAST_STEPS = 6
# Little: steps that were measured decide.
_STIFFNESS = 0.03
# Of what is nearly known. Steps of one model cannot tell fixed costs from weights, which each of them reads; but the
# memory's bandwidth was measured here. Nor can they tell how well reading and multiplying overlap from what few rows
# lose; but kernels on few cores take about 1.4 times as long for both where each alone takes equally long.
_KNOWN = 0.3
_NEARLY_KNOWN = dict.fromkeys(("overlap", *(f"weights {kind}" for kind in PROCESSOR.weights)), _KNOWN)


class Answering(msgspec.Struct, frozen=True):
    """What steps and requests take longer for, where a process beside the engine answers clients of the same machine.

    Attributes:
        step_seconds, row_seconds: of a step, and for each of its rows.
        request_seconds: by which a request makes others' steps late, beside its prompt's computation.
        apart_seconds: by which requests that are sent together come one behind the other.
        first_seconds: from when a client sends a request until it has the first token, beside the prompt's step and
            what answering adds to it.
    """

    step_seconds: float
    row_seconds: float
    request_seconds: float
    apart_seconds: float
    first_seconds: float

    def with_it(self, efficiency: Efficiency, layers: int) -> Efficiency:
        """Coefficients of an engine with that many layers, behind its server."""
        return msgspec.structs.replace(
            efficiency,
            step_seconds=efficiency.step_seconds + self.step_seconds,
            row_seconds=efficiency.row_seconds + self.row_seconds,
            # Most prompts are computed in one part, and many parts are of a long one, beside which this is little.
            chunk_seconds=efficiency.chunk_seconds + self.request_seconds,
            first_layer_seconds=self.first_seconds / layers,
        )


class Answered(msgspec.Struct, frozen=True):
    """The same steps of decodes, measured at the engine and at clients.

    Attributes:
        rows: requests at a time.
        output: tokens of each, in the mean.
        alone, answered: seconds of a step, without clients and as clients see it.
    """

    rows: int
    output: float
    alone: float
    answered: float

    @property
    def prompts(self) -> float:
        """Others' prompts for each step: each of them has one while a request has its output."""
        return (self.rows - 1) / self.output


def answering_of(points: Sequence[Answered], short: Answered, prompt: float, apart: float, first: float) -> Answering:
    """What the points say. None of the parts is below zero.

    Args:
        points: of outputs that are long beside `short`, which has as many rows as the last.
        prompt: seconds by which a prompt of these requests lengthens a step of others.
        apart: see `Answering`.
        first: seconds to the first token of a request that comes alone, beside its prompt's step.
    """
    # It imports numpy, which plans need not.
    from penstock.planning.fitting import fit_line

    longer = short.answered - points[-1].answered
    request = max(0.0, longer / (short.prompts - points[-1].prompts) - prompt)
    beside = [point.answered - point.alone - point.prompts * (prompt + request) for point in points]
    step, each = fit_line([point.rows for point in points], beside)
    return Answering(step, each, request, apart, max(0.0, first - step - each - request))


def median_answering(turns: Sequence[Answering]) -> Answering:
    """The median of each part, of several turns."""
    low, high = (len(turns) - 1) // 2, len(turns) // 2
    parts = (sorted(part) for part in zip(*map(msgspec.structs.astuple, turns), strict=True))
    return Answering(*((part[low] + part[high]) / 2 for part in parts))


class OwnMachine(msgspec.Struct, frozen=True):
    """A device that was measured.

    Attributes:
        efficiency: how much of its limits the engine reaches by itself.
        interval: the ends that hold nine tenths of steps that were left out, as multiples of their estimates.
        model, kept: whose steps were measured, and the formats of its weights and cache.
        steps: what was measured.
        varied: single steps as multiples of the mean of their kind, in ascending order.
        made: the day, as in 2026-11-26.
        answering: what a server with its clients on this machine adds; None where that was not measured.
        ranks: what several processes take that share it, as far as that was measured.
        threads: that computed, of one process or of ranks together; 0: not known.
    """

    device: Device
    made: str
    efficiency: Efficiency
    interval: tuple[float, float]
    model: str
    kept: tuple[str, str]
    steps: tuple[MeasuredStep, ...]
    varied: tuple[float, ...] = ()
    answering: Answering | None = None
    ranks: tuple[RankCosts, ...] = ()
    threads: int = 0

    def basis(self, deployment: Deployment) -> Basis:
        """What estimates of a deployment on it stand on; for another model or format on less."""
        efficiency, apart = self.efficiency, 0.0
        if self.answering is not None:
            efficiency = self.answering.with_it(efficiency, deployment.shape.num_layers)
            apart = self.answering.apart_seconds
        said = f"{len(self.steps)} steps of {self.model} ({self.kept[0]}) on this machine, measured on {self.made}"
        if deployment.weights.kind == self.kept[0]:
            return Basis(efficiency, self.interval, self.interval, said, self.varied, apart)
        (own_low, own_high), (low, high) = self.interval, priors.TPOT_INTERVAL
        low, high = min(own_low, low), max(own_high, high)
        return Basis(
            efficiency, (low, high), (low, high), f"{said}, and of no others in this format", self.varied, apart
        )


def calibrated_machine(
    deployment: Deployment,
    steps: Sequence[MeasuredStep],
    made: str,
    model: str,
    kept: tuple[str, str],
    varied: tuple[float, ...] = (),
) -> OwnMachine:
    """The machine of a deployment by steps that were measured on it.

    The interval is that of the errors that each third of the steps has where the others are fitted without it. Raises
    ConfigurationError where there are too few.
    """
    # It imports numpy, which plans need not.
    from penstock.planning.fitting import fit_steps, step_residuals

    if len(steps) < _LEAST_STEPS:
        raise ConfigurationError(f"{len(steps)} steps are too few to calibrate from; give more time with --seconds.")
    wrong: list[float] = []
    for part in range(3):
        others = [step for place, step in enumerate(steps) if place % 3 != part]
        found = fit_steps(deployment, others, PROCESSOR, _NEARLY_KNOWN, _STIFFNESS)
        wrong += step_residuals(deployment, found, steps[part::3])
    found = fit_steps(deployment, steps, PROCESSOR, _NEARLY_KNOWN, _STIFFNESS)
    return OwnMachine(
        device=deployment.device,
        made=made,
        efficiency=_for_other_formats(found, deployment.weights.kind),
        interval=interval_of(wrong, _LEAST),
        model=model,
        kept=kept,
        steps=tuple(steps),
        varied=varied,
    )


def _for_other_formats(found: Efficiency, kind: str) -> Efficiency:
    """Weights of other formats are taken to reach the same part of the machine's limits as those that were measured."""
    return msgspec.structs.replace(
        found,
        weights=dict.fromkeys(found.weights, found.weights[kind]),
        products=dict.fromkeys(found.products, found.products[kind]),
    )


def read_machine(text: bytes, name: str) -> OwnMachine:
    """The machine of a file. Raises ConfigurationError."""
    try:
        return msgspec.json.decode(text, type=OwnMachine)
    except msgspec.DecodeError as error:
        hint = "an older version may have written it: run `penstock calibrate` again"
        raise ConfigurationError(f"{name} is not what `penstock calibrate` writes ({error}); {hint}.") from None
