"""How far `penstock plan` is off where others have measured, each device and each model left out of the fit in turn.

    python benchmarks/planning_public.py --tables DIR [--write]

DIR has `inferencex_aic_agg.csv`: measured TTFT and TPOT of vLLM, SGLang and TensorRT-LLM, derived from InferenceX by
aiconfigurator (Apache-2.0, systems/silicon_sample.csv). The fit takes a few points of each model, device, engine and
number of devices; what it is judged by is all points of what was left out. `--write` writes the coefficients of all
points, and the intervals that held 90% of those left out, into `src/penstock/planning/priors.py`.
"""

import csv
import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from math import exp
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
import reporting

from penstock.planning.calibration import MeasuredPoint, calibrated
from penstock.planning.efficiency import Efficiency
from penstock.planning.estimates import Workload, estimate
from penstock.planning.fitting import Point, coefficients, fit, residuals
from penstock.planning.formats import FORMATS, Format
from penstock.planning.hardware import device_of
from penstock.planning.latency import Deployment, least_seconds
from penstock.planning.memory import memory_of, places_of
from penstock.planning.reading import shape_of

ROOT = Path(__file__).resolve().parents[1]
PRIORS = ROOT / "src" / "penstock" / "planning" / "priors.py"
SHAPES = {
    name: shape_of(config)
    for name, config in json.loads(Path(__file__).with_name("public_models.json").read_text()).items()
}
# Names of the table that the file of shapes has otherwise.
OTHER_NAMES = {
    "DeepSeek-R1": "DeepSeek-V3",
    "DeepSeek-R1-NVFP4": "DeepSeek-V3",
    "DeepSeek-V3.1-NVFP4": "DeepSeek-V3",
    "Llama-3.1-8B-Instruct": "Llama-3.1-8B",
    "Llama-3.1-8B-Instruct-FP8": "Llama-3.1-8B",
    "Qwen3-235B-A22B-FP8": "Qwen3-235B-A22B",
    "Qwen3-32B-NVFP4": "Qwen3-32B",
}
# InferenceX draws lengths between 0.8 of the nominal ones and all of them.
TRUE_LENGTH = 0.9
# Of one model, device, engine and number of devices.
_FITTED = 8
# How much less its TTFT says than its TPOT.
_TTFT_WEIGHT = 0.3
# Of one model, device, engine, version and format.
_CALIBRATED = 8
# Medians of kernel tables of vLLM (aiconfigurator): small products as parts of the bandwidth, large ones of the rate.
START = Efficiency(
    weights={"plain": 0.85, "fp8": 0.78, "fp8 in blocks": 0.72, "fp4": 0.78}
    | {"int4 weights": 0.72, "int8": 0.78, "int8 weights": 0.75, "gguf": 0.7},
    products={"plain": 0.75, "fp8": 0.5, "fp8 in blocks": 0.45, "fp4": 0.38}
    | {"int4 weights": 0.6, "int8": 0.5, "int8 weights": 0.6, "gguf": 0.4},
    half_part=0.63,
    overlap=32.0,
    cache=0.7,
    attention=0.45,
    link=0.5,
    message_seconds=4e-6,
    layer_seconds=20e-6,
    expert_seconds=10e-6,
    recurrent_seconds=10e-6,
    step_seconds=1e-3,
    row_seconds=5e-6,
    chunk_seconds=5e-6,
    stall=1.0,
    first_layer_seconds=5e-4,
    burst=0.1,
)
# What kernel tables say is worth more than what nobody has measured.
_LOOSE = 0.3
_FIRM = 2.0
_LOOSELY = (
    "layer_seconds",
    "expert_seconds",
    "recurrent_seconds",
    "step_seconds",
    "row_seconds",
    "chunk_seconds",
    "stall",
    "burst",
)
STIFFNESS = dict.fromkeys((*_LOOSELY, "message_seconds", "first_layer_seconds"), _LOOSE)


class Row(NamedTuple):
    """A measured configuration."""

    device: str
    model: str
    engine: str
    version: str
    devices: int
    point: Point


def read_rows(path: Path) -> tuple[list[Row], dict[str, int]]:
    """The configurations that a plan can say something of, and how many others there are, by why they are left out."""
    times: dict[tuple[str, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    columns = ("gpu", "num_gpus", "model", "precision", "engine", "version", "parallelism", "isl", "osl")
    for row in csv.DictReader(path.open()):
        key = (*(row[name] for name in columns), row["concurrency_or_batch"], row["notes"])
        times[key][row["metric"]].append(float(row["value"]) / 1e3)
    found, left_out = [], defaultdict[str, int](int)
    for key, measured in times.items():
        row = _row(key, measured)
        if isinstance(row, str):
            left_out[row] += 1
        else:
            found.append(row)
    return found, left_out


def _row(key: tuple[str, ...], measured: dict[str, list[float]]) -> Row | str:
    """A configuration, or why it is left out."""
    device, devices, model, precision, engine, version, parallelism, inputs, outputs, concurrency, notes = key
    layout = re.fullmatch(r"tp(\d+)-(adp\d+-)?moetp(\d+)-ep(\d+)", parallelism)
    assert layout is not None, parallelism
    split, name = int(layout[1]), model.split("/")[-1]
    groups = 1
    if layout[2]:
        # How many devices there were is not said: a group has one, and they are as many as attention or experts say.
        groups = split = split if split > 1 else int(layout[4])
    shape = SHAPES[OTHER_NAMES.get(name, name)]
    whole = groups > 1 or (split == int(devices) and (not shape.routes or int(layout[3]) * int(layout[4]) == split))
    if split > 8 or not whole:
        return "more than 8 devices, or a layout that is not said whole"
    if device == "GB200":
        return "GB200: few rows, whose number of devices is uncertain"
    part = TRUE_LENGTH if notes.startswith("inferencex") else 1.0
    kept = table_format(name, precision)
    deployment = Deployment(
        shape,
        device_of(device),
        split,
        FORMATS[kept],
        cache=FORMATS[cache_format(FORMATS[kept], device, engine)],
        attention_weights=FORMATS["bfloat16"] if kept == "mxfp4" else None,
        groups=groups,
    )
    workload = Workload(float(inputs) * part, float(outputs) * part, float(concurrency))
    memory = memory_of(deployment, round(workload.input_tokens + workload.output_tokens))
    places = places_of(deployment, memory, workload)
    if places < 1:
        return "it does not fit by the plan's count"
    ttft, tpot = median(measured["ttft"]), median(measured["tpot"])
    if _busy(deployment, workload, places, ttft + tpot * (workload.output_tokens - 1)) > 1:
        return "more tokens a second than its devices can multiply or read for"
    point = Point(deployment, workload, ttft, tpot, _TTFT_WEIGHT, places)
    return Row(device, name, engine, version, split, point)


def cache_format(weights: Format, device: str, engine: str) -> str:
    """The table does not say it: recipes keep eight bits of quantized models in TensorRT-LLM, and vLLM on Blackwell."""
    eight = engine == "trtllm" or (engine == "vllm" and device.startswith("B"))
    return "fp8" if eight and weights.kind.startswith(("fp8", "fp4")) else "bfloat16"


def _busy(deployment: Deployment, workload: Workload, places: float, seconds: float) -> float:
    """The part of the time that the least work of requests takes, each of which took `seconds`."""
    rows, further = min(workload.concurrency, places), workload.output_tokens - 1
    step = least_seconds(deployment, rows, rows, workload.middle_context)
    least = least_seconds(deployment, workload.input_tokens) + further * step / rows
    return workload.concurrency / seconds * least


def table_format(model: str, precision: str) -> str:
    """Where the table names none, dense models ran in 16 bits, as their times say."""
    if model.startswith("gpt-oss"):
        return "mxfp4"
    for part, name in (("nvfp4", "nvfp4"), ("fp8_block", "fp8_block"), ("int4", "int4"), ("fp8", "fp8")):
        if part in precision:
            return name
    return "bfloat16"


def fitted(rows: Sequence[Row], most: int = _FITTED) -> Efficiency:
    """Coefficients from at most so many points of each model, device, engine and number of devices."""
    drawn = random.Random(1)
    kinds: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        kinds[row.model, row.device, row.engine, str(row.devices)].append(row)
    points = [row.point for kind in kinds.values() for row in drawn.sample(kind, min(most, len(kind)))]
    return fit(points, START, STIFFNESS, _FIRM)


def ratios(efficiency: Efficiency, rows: Sequence[Row], figure: str) -> list[float]:
    """Measured over estimated."""
    other = "ttft" if figure == "tpot" else "tpot"
    points = [msgspec.structs.replace(row.point, ttft_weight=1.0, **{other: None}) for row in rows]
    return [exp(-wrong) for wrong in residuals(efficiency, points)]


def errors(found: Sequence[float]) -> tuple[float, float]:
    """Median and 90th percentile of how far estimates are off, as parts of what was measured."""
    off = sorted(abs(1 / ratio - 1) for ratio in found)
    return median(off), off[int(0.9 * len(off))]


def left_out_in_turn(rows: Sequence[Row], of: Callable[[Row], str]) -> dict[str, dict[str, list[float]]]:
    """Ratios of the rows of each device, or model, by coefficients of all others."""
    found: dict[str, dict[str, list[float]]] = {}
    for name in sorted({of(row) for row in rows}):
        others = fitted([row for row in rows if of(row) != name])
        own = [row for row in rows if of(row) == name]
        found[name] = {figure: ratios(others, own, figure) for figure in ("tpot", "ttft")}
    return found


class Calibrated(NamedTuple):
    """TPOT by eight points of each model, device, engine, version and format: measured over estimated.

    Attributes:
        kinds: how many of these there are.
        covered: part of the points that were within their interval, which comes from the eight.
    """

    kinds: int
    ratios: list[float]
    covered: float


def calibrated_alone(rows: Sequence[Row]) -> Calibrated:
    """Each kind with enough points, by `--calibration` of eight that are drawn; judged by the others."""
    drawn = random.Random(2)
    kinds: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        kinds[row.engine, row.version, row.device, row.model, row.point.deployment.weights.kind].append(row)
    large = [kind for kind in kinds.values() if len(kind) >= 3 * _CALIBRATED]
    found: list[float] = []
    inside = 0
    for kind in large:
        chosen = set(drawn.sample(range(len(kind)), _CALIBRATED))
        basis = calibrated(kind[0].point.deployment, [_measured(row) for at, row in enumerate(kind) if at in chosen])
        others = ratios(basis.efficiency, [row for at, row in enumerate(kind) if at not in chosen], "tpot")
        inside += sum(basis.tpot[0] <= ratio <= basis.tpot[1] for ratio in others)
        found += others
    return Calibrated(len(large), found, inside / len(found))


def _measured(row: Row) -> MeasuredPoint:
    workload, tpot = row.point.workload, row.point.tpot
    assert tpot is not None
    return MeasuredPoint(
        input_len=round(workload.input_tokens),
        output_len=round(workload.output_tokens),
        concurrency=round(workload.concurrency),
        tensor_parallel_size=row.devices,
        tpot_ms=tpot * 1e3,
    )


def ordered_rightly(efficiency: Efficiency, rows: Sequence[Row]) -> float:
    """The share of pairs of one model's configurations, more than a tenth apart in tokens a second, that is."""
    right = pairs = 0
    by_model: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        told = estimate(row.point.deployment, efficiency, row.point.workload, row.point.places)
        assert row.point.tpot is not None
        by_model[row.model].append((row.point.workload.concurrency / row.point.tpot, told.output_tokens_per_second))
    for known in by_model.values():
        for index, (measured, told) in enumerate(known):
            for other_measured, other_told in known[:index]:
                if max(measured, other_measured) > 1.1 * min(measured, other_measured):
                    pairs += 1
                    right += (measured > other_measured) == (told > other_told)
    return right / pairs


def quantiles(found: Sequence[float]) -> tuple[float, float]:
    """The ends of the middle 90%."""
    ordered = sorted(found)
    return ordered[int(0.05 * len(ordered))], ordered[int(0.95 * len(ordered))]


def write(efficiency: Efficiency, rows: Sequence[Row], tpot: Sequence[float], ttft: Sequence[float]) -> None:
    """Write the package's priors."""
    text = PRIORS.read_text()
    head = text[: text.index("TYPICAL = ")]
    shown = {name: float(f"{value:.3g}") for name, value in coefficients(efficiency).items()}
    fields: dict[str, object] = {}
    for name, value in shown.items():
        field, _, kind = name.partition(" ")
        if kind:
            fields.setdefault(field, {})[kind] = value  # type: ignore[index]
        else:
            fields[field] = value
    arguments = "".join(f"    {field}={value!r},\n" for field, value in fields.items())
    ends = {name: tuple(round(end, 2) for end in quantiles(found)) for name, found in (("TPOT", tpot), ("TTFT", ttft))}
    measured = sorted({(row.point.deployment.device.name, row.point.deployment.weights.kind) for row in rows})
    tail = (
        f"TYPICAL = Efficiency(\n{arguments})\n"
        "# Estimates times these are the ends of an interval that held 90% of what was measured, each device left out\n"
        "# in turn.\n"
        f"TPOT_INTERVAL = {ends['TPOT']}\nTTFT_INTERVAL = {ends['TTFT']}\n"
        f"# Devices and formats that were measured.\nMEASURED = frozenset({measured!r})\n"
    )
    PRIORS.write_text(head + tail)


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--tables", type=Path, required=True, help="the folder of measurements")
    parser.add_argument("--write", action="store_true", help="write the package's coefficients")
    arguments = parser.parse_args()
    found, others = read_rows(arguments.tables / "inferencex_aic_agg.csv")
    rows = [row for row in found if row.point.deployment.groups == 1]
    grouped = [row for row in found if row.point.deployment.groups > 1]
    all_points = fitted(rows)
    table = []
    by_device, by_model = left_out_in_turn(rows, lambda row: row.device), left_out_in_turn(rows, lambda row: row.model)
    for title, kinds in (("device", by_device), ("model", by_model)):
        for name, by in kinds.items():
            table.append((f"without {name}", len(by["tpot"]), *_shown(by["tpot"]), *_shown(by["ttft"])))
        together = {figure: [ratio for by in kinds.values() for ratio in by[figure]] for figure in ("tpot", "ttft")}
        table.append((f"each {title} left out", len(rows), *_shown(together["tpot"]), *_shown(together["ttft"])))
    for what, some in (("nothing left out", rows), ("data-parallel attention, none of it fitted", grouped)):
        figures = (ratios(all_points, some, figure) for figure in ("tpot", "ttft"))
        table.append((what, len(some), *(part for each in figures for part in _shown(each))))
    alone = calibrated_alone(rows)
    table.append((f"8 points of each of {alone.kinds} kinds", len(alone.ratios), *_shown(alone.ratios), None, None))
    low, high = quantiles([ratio for by in by_device.values() for ratio in by["tpot"]])
    models = [ratio for by in by_model.values() for ratio in by["tpot"]]
    covered = sum(low <= ratio <= high for ratio in models) / len(models)
    notes = "; ".join(f"{count} left out: {why}" for why, count in sorted(others.items()))
    notes += (
        f". The interval of TPOT that holds 90% where devices are left out holds {covered:.1%} where models are; those "
        f"of 8 points hold {alone.covered:.1%}"
    )
    reporting.report(
        f"{len(rows)} configurations; pairs that differ by a tenth, ordered rightly: "
        f"{ordered_rightly(all_points, rows):.1%}",
        ("coefficients", "points", "TPOT off, median", "p90", "TTFT off, median", "p90"),
        table,
        notes,
    )
    if arguments.write:
        devices = {figure: [ratio for by in by_device.values() for ratio in by[figure]] for figure in ("tpot", "ttft")}
        write(all_points, rows, devices["tpot"], devices["ttft"])


def _shown(found: Sequence[float]) -> tuple[str, str]:
    middle, most = errors(found)
    return f"{middle:.1%}", f"{most:.0%}"


if __name__ == "__main__":
    main()
