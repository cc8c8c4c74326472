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

from penstock.planning.calibration import STIFFNESS_ALONE
from penstock.planning.efficiency import Efficiency
from penstock.planning.estimates import Workload, estimate
from penstock.planning.fitting import Point, coefficients, fit, residuals
from penstock.planning.formats import FORMATS
from penstock.planning.hardware import device_of
from penstock.planning.latency import Deployment
from penstock.planning.priors import TYPICAL
from penstock.planning.reading import shape_of

ROOT = Path(__file__).resolve().parents[1]
PRIORS = ROOT / "src" / "penstock" / "planning" / "priors.py"
SHAPES = {
    name: shape_of(config)
    for name, config in json.loads(Path(__file__).with_name("public_models.json").read_text()).items()
}
# Names of the table that the file of shapes has otherwise.
_OTHER_NAMES = {
    "DeepSeek-R1": "DeepSeek-V3",
    "DeepSeek-R1-NVFP4": "DeepSeek-V3",
    "DeepSeek-V3.1-NVFP4": "DeepSeek-V3",
    "Llama-3.1-8B-Instruct": "Llama-3.1-8B",
    "Llama-3.1-8B-Instruct-FP8": "Llama-3.1-8B",
    "Qwen3-235B-A22B-FP8": "Qwen3-235B-A22B",
    "Qwen3-32B-NVFP4": "Qwen3-32B",
}
# InferenceX draws lengths between 0.8 of the nominal ones and all of them.
_TRUE_LENGTH = 0.9
# Of one model, device, engine and number of devices.
_FITTED = 2
# Of one model, device, engine and format.
_CALIBRATED = 8
# Medians of kernel tables of vLLM (aiconfigurator): small products as parts of the bandwidth, large ones of the rate.
START = Efficiency(
    weights={"plain": 0.85, "fp8": 0.78, "fp8 in blocks": 0.72, "fp4": 0.78}
    | {"int4 weights": 0.72, "int8": 0.78, "int8 weights": 0.75, "gguf": 0.7},
    products={"plain": 0.75, "fp8": 0.5, "fp8 in blocks": 0.45, "fp4": 0.38}
    | {"int4 weights": 0.6, "int8": 0.5, "int8 weights": 0.6, "gguf": 0.4},
    half_part=0.63,
    cache=0.7,
    attention=0.45,
    link=0.5,
    message_seconds=8e-6,
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
_LOOSELY = ("layer_seconds", "expert_seconds", "recurrent_seconds", "step_seconds", "row_seconds", "chunk_seconds", "stall", "burst")
STIFFNESS = dict.fromkeys((*_LOOSELY, "message_seconds", "first_layer_seconds"), _LOOSE)


class Row(NamedTuple):
    """A measured configuration."""

    device: str
    model: str
    engine: str
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
    device, devices, model, precision, engine, _, parallelism, inputs, outputs, concurrency, notes = key
    layout = re.fullmatch(r"tp(\d+)-(adp\d+-)?moetp(\d+)-ep(\d+)", parallelism)
    if layout is None or layout[2]:
        return "attention is data-parallel"
    split, name = int(layout[1]), model.split("/")[-1]
    shape = SHAPES[_OTHER_NAMES.get(name, name)]
    if split != int(devices) or split > 8 or (shape.routes and int(layout[3]) * int(layout[4]) != split):
        return "more than 8 devices, or a layout that is not said whole"
    if device == "GB200":
        return "GB200: few rows, whose number of devices is uncertain"
    part = _TRUE_LENGTH if notes.startswith("inferencex") else 1.0
    kept = _format(name, precision)
    deployment = Deployment(
        shape,
        device_of(device),
        split,
        FORMATS[kept],
        attention_weights=FORMATS["bfloat16"] if kept == "mxfp4" else None,
    )
    workload = Workload(float(inputs) * part, float(outputs) * part, float(concurrency))
    point = Point(deployment, workload, median(measured["ttft"]), median(measured["tpot"]))
    return Row(device, name, engine, split, point)


def _format(model: str, precision: str) -> str:
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
    points = [msgspec.structs.replace(row.point, **{other: None}) for row in rows]
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


def calibrated_alone(rows: Sequence[Row]) -> tuple[int, list[float]]:
    """TPOT of each model on each device, engine and format by eight of its points: how many such, and their ratios."""
    drawn = random.Random(2)
    kinds: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        kinds[row.engine, row.device, row.model, row.point.deployment.weights.kind].append(row)
    large = [kind for kind in kinds.values() if len(kind) >= 3 * _CALIBRATED]
    found: list[float] = []
    for kind in large:
        chosen = set(drawn.sample(range(len(kind)), _CALIBRATED))
        points = [msgspec.structs.replace(row.point, ttft=None) for place, row in enumerate(kind) if place in chosen]
        efficiency = fit(points, TYPICAL, {}, STIFFNESS_ALONE)
        found += ratios(efficiency, [row for place, row in enumerate(kind) if place not in chosen], "tpot")
    return len(large), found


def ordered_rightly(efficiency: Efficiency, rows: Sequence[Row]) -> float:
    """The share of pairs of one model's configurations, more than a tenth apart in tokens a second, that is."""
    right = pairs = 0
    by_model: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        told = estimate(row.point.deployment, efficiency, row.point.workload)
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
    rows, others = read_rows(arguments.tables / "inferencex_aic_agg.csv")
    all_points = fitted(rows)
    table = []
    by_device, by_model = left_out_in_turn(rows, lambda row: row.device), left_out_in_turn(rows, lambda row: row.model)
    for title, kinds in (("device", by_device), ("model", by_model)):
        for name, found in kinds.items():
            table.append((f"without {name}", len(found["tpot"]), *_shown(found["tpot"]), *_shown(found["ttft"])))
        together = {
            figure: [ratio for found in kinds.values() for ratio in found[figure]] for figure in ("tpot", "ttft")
        }
        table.append((f"each {title} left out", len(rows), *_shown(together["tpot"]), *_shown(together["ttft"])))
    inside = (ratios(all_points, rows, figure) for figure in ("tpot", "ttft"))
    table.append(("nothing left out", len(rows), *(part for found in inside for part in _shown(found))))
    groups, alone = calibrated_alone(rows)
    table.append((f"8 points of each of {groups} kinds", len(alone), *_shown(alone), None, None))
    notes = "; ".join(f"{count} left out: {why}" for why, count in sorted(others.items()))
    reporting.report(
        f"{len(rows)} configurations; pairs that differ by a tenth, ordered rightly: "
        f"{ordered_rightly(all_points, rows):.1%}",
        ("coefficients", "points", "TPOT off, median", "p90", "TTFT off, median", "p90"),
        table,
        notes,
    )
    if arguments.write:
        devices = {
            figure: [ratio for found in by_device.values() for ratio in found[figure]] for figure in ("tpot", "ttft")
        }
        write(all_points, rows, devices["tpot"], devices["ttft"])


def _shown(found: Sequence[float]) -> tuple[str, str]:
    middle, most = errors(found)
    return f"{middle:.1%}", f"{most:.0%}"


if __name__ == "__main__":
    main()
