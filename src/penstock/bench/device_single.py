"""One operation alone on a GPU, on random inputs: launches one after another, captured as a graph."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.bench.single import Planes, batch_of, planes_shape, routed_rows
from penstock.core.sampling import SamplingParams
from penstock.kernels.cases import Case
from penstock.kernels.cuda.choosing import launch_choice, questions
from penstock.kernels.cuda.operations import implementations
from penstock.kernels.cuda.place import Place
from penstock.kernels.cuda.program import DevicePart
from penstock.kernels.cuda.step import DeviceStep, Staging, arrays_of, step_of
from penstock.kernels.dispatch import Binding
from penstock.kernels.packing import Weight
from penstock.kernels.places import RopeSpec
from penstock.kernels.rope import RopeTable
from penstock.kernels.signature import Attention, Experts, GatedActivation, Operation, WriteKV
from penstock.sampling.choice import constants_of
from penstock.sampling.noise import Purpose, position_key

Launches = Callable[[], object]
# Standard deviation of random logits: a model is sure of some tokens and unsure of others.
_DEVIATION = 3


@dataclass(frozen=True, slots=True, eq=False)
class _Captured:
    """A graph with the launches that it was made of, whose inputs it goes on reading."""

    graph: torch.cuda.CUDAGraph
    launches: Launches

    def __call__(self) -> None:
        self.graph.replay()


def captured(launches: Launches, place: Place) -> Launches:
    """The same as one graph, so that what the host takes to launch each is not measured.

    Where Triton is interpreted they stay as they are.
    """
    # Once as they are, so that all kernels are compiled before anything is recorded.
    launches()
    if place.device.type != "cuda":
        return launches
    torch.cuda.synchronize(place.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launches()
    return _Captured(graph, launches)


def case_on_device(
    case: Case, matrices: Sequence[Mapping[str, Weight]], steps: int, place: Place, dtype: torch.dtype
) -> Launches:
    """The case's operation `steps` times, in turn with the `matrices` on the device, by name.

    Attention and what stores keys and values has planes of its own in each step. All steps have the same inputs.
    """
    rope_tables: dict[RopeSpec, RopeTable] = {}
    planes = [
        _planes(case, place, dtype) for _ in range(steps if isinstance(case.operation, Attention | WriteKV) else 1)
    ]
    parts: list[tuple[DevicePart, DevicePart | None]] = []
    for index in range(steps):
        weights: dict[str, Weight] = {}
        for name, shape in case.weights.items():
            packed = matrices[index % len(matrices)].get(name)
            weights[name] = random_on(place, shape, dtype) if packed is None else packed
        binding = Binding(weights, planes[index % len(planes)], dtype, (False,) * len(case.widths), rope_tables)
        gate = None if case.gate is None else _part(GatedActivation(case.gate), binding, place)
        parts.append((_part(case.operation, binding, place), gate))
    step = _step(case, parts[0][0], place)
    values = [random_on(place, (case.tokens, width), dtype) for width in case.widths]
    if isinstance(case.operation, Experts):
        values[1] = routed_rows(case).to(place.device)

    def launch() -> None:
        for part, gate in parts:
            made = part.run(step, *values)
            if gate is not None:
                gate.run(step, made)

    return launch


def choice_on_device(params: SamplingParams, rows: int, vocabulary: int, steps: int, place: Place) -> Launches:
    """Choosing a token for each of `rows` rows of logits, `steps` times, each time at the next position."""
    logits = _DEVIATION * random_on(place, (rows, vocabulary), torch.float32)
    temperature, top_k, top_p, log_min_p, _, seed, sample, _ = constants_of(params, 0)
    asked = []
    for position in range(steps):
        key = position_key(seed, sample, Purpose.TOKEN, position)
        asked.append([(row, temperature, top_k, top_p, log_min_p, key) for row in range(rows)])
    staging = Staging(place.device)
    numbers = [questions(staging, each) for each in asked]

    def launch() -> None:
        for each in numbers:
            launch_choice(logits, each, temperature > 0)

    return launch


def random_on(place: Place, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Normal values on the device."""
    return torch.randn(tuple(shape), device=place.device).to(dtype)


def _part(operation: Operation, binding: Binding, place: Place) -> DevicePart:
    found = next(entry for entry in implementations(place) if entry.operation is type(operation))
    obstacle = found.supports(operation, binding)
    if obstacle is not None:
        raise ValueError(f"{type(operation).__name__} has no kernel for GPUs here: {obstacle}.")
    part = found.prepare(operation, binding)
    assert isinstance(part, DevicePart)
    return part


def _planes(case: Case, place: Place, dtype: torch.dtype) -> Planes:
    keys, values = (random_on(place, planes_shape(case), dtype) for _ in range(2))
    return Planes(keys, values, "slots")


def _step(case: Case, part: DevicePart, place: Place) -> DeviceStep:
    batch = batch_of(case)
    queries = (part.queries,) if part.queries else ()
    views = Staging(place.device).send(arrays_of(batch, queries))
    return step_of(views, len(batch.block_tables), queries, max(batch.context_lengths))
