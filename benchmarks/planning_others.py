"""How far `penstock plan` is off where nothing was fitted: other engines, other devices, the most that a device yields.

    python benchmarks/planning_others.py --tables DIR

DIR has `llamacpp_xiongjiedai.csv` (llama-bench, 2024: one request at a time on consumer GPUs and others),
`llamacpp_dgx_spark.csv` (llama-batched-bench on a GB10), `trtllm_docs.csv` (the most tokens a second of TensorRT-LLM,
all requests waiting, from its documents), `mlperf_v5_1_llm.csv` (the same of MLPerf's submissions, offline),
`sglang_cookbook.csv` (runs of SGLang's documents, which say that they are not tuned) and `inferencex_aic_disagg.csv`
(InferenceX, with prompts on devices of their own). Coefficients are those that the package has; none comes from these
rows.
"""

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
import reporting
from planning_public import OTHER_NAMES, SHAPES, TRUE_LENGTH, cache_format, errors, table_format

from penstock.core.errors import ConfigurationError
from penstock.planning.estimates import Workload, estimate, most_throughput
from penstock.planning.formats import format_of
from penstock.planning.hardware import device_of
from penstock.planning.latency import Deployment, decode_step
from penstock.planning.memory import memory_of
from penstock.planning.priors import TYPICAL

# Names of the tables that those of shapes and devices are behind.
_MODELS = {
    "Llama-3-8B": "Llama-3.1-8B",
    "Llama-3-70B": "Llama-3.1-70B",
    "LLaMA v3.1 8B": "Llama-3.1-8B",
    "Llama 3.1 8B": "Llama-3.1-8B",
    "LLaMA v3.1 70B": "Llama-3.1-70B",
    "Llama 3.3 70B": "Llama-3.1-70B",
    "Llama 3.1 405B": "Llama-3.1-405B",
    "LLaMA v3.1 405B": "Llama-3.1-405B",
    "LLaMA 70B": "Llama-2-70B",
    "LLaMA 7B": "Llama-7B",
    "Mistral 7B": "Mistral-7B",
    "Mixtral 8x7B": "Mixtral-8x7B",
    "Mixtral 8x22B": "Mixtral-8x22B",
    "Falcon 180B": "Falcon-180B",
    "GPT-J 6B": "GPT-J-6B",
    "GPT-OSS 120B": "gpt-oss-120b",
    "GPT-OSS 20B": "gpt-oss-20b",
    "Qwen3-30B-A3B": "Qwen3-30B-A3B",
    "Qwen3-235B-A22B": "Qwen3-235B-A22B",
    "Llama 4 Scout": "Llama-4-Scout",
    "Llama 4 Maverick": "Llama-4-Maverick",
    "DeepSeek-R1-0528": "DeepSeek-V3",
    "gpt-oss-20b": "gpt-oss-20b",
    "gpt-oss-120b": "gpt-oss-120b",
    "llama2-70b-99": "Llama-2-70B",
    "llama2-70b-99.9": "Llama-2-70B",
    "llama3.1-8b": "Llama-3.1-8B",
    "llama3.1-405b": "Llama-3.1-405B",
    "Llama-3.1-70B": "Llama-3.1-70B",
    "Llama-4-Scout-17B-16E-Instruct": "Llama-4-Scout",
    "Llama-4-Maverick-17B-128E-Instruct": "Llama-4-Maverick",
    "DeepSeek-V3.1": "DeepSeek-V3",
    "MiniMax-M2.5": "MiniMax-M2.5",
    "Kimi-K2.5": "Kimi-K2.5",
    "Qwen3-235B-A22B-Instruct-2507": "Qwen3-235B-A22B",
}
# Formats that the models of the cookbook come in; it does not say them.
_OWN_FORMATS = {
    "DeepSeek-R1-0528": "fp8_block",
    "DeepSeek-V3.1": "fp8_block",
    "MiniMax-M2.5": "fp8_block",
    "Kimi-K2.5": "int4",
    "Llama-3.1-70B": "bfloat16",
    "Llama-4-Scout-17B-16E-Instruct": "bfloat16",
    "Llama-4-Maverick-17B-128E-Instruct": "bfloat16",
    "Qwen3-235B-A22B-Instruct-2507": "bfloat16",
}
# Mean tokens of prompts and outputs of MLPerf's datasets.
_MLPERF = {"Llama-2-70B": (294, 290), "Llama-3.1-8B": (778, 73), "Llama-3.1-405B": (9428, 650)}
_DEVICES = {
    "3090 24GB": "rtx 3090",
    "4090 24GB": "rtx 4090",
    "A100 PCIe 80GB": "a100 80gb pcie",
    "A100 SXM 80GB": "a100 80gb",
    "A100-SXM-80": "a100 80gb",
    "A40 48GB": "a40",
    "H100 PCIe 80GB": "h100 pcie",
    "L40S 48GB": "l40s",
    "RTX 6000 Ada 48GB": "rtx 6000 ada",
    "RTX A6000 48GB": "rtx a6000",
    "M1 Max 32-Core GPU 64GB": "m1 max",
    "M2 Ultra 76-Core GPU 192GB": "m2 ultra",
    "M3 Max 40-Core GPU 64GB": "m3 max",
    "GB10 (DGX Spark)": "gb10",
    "GH200-480GB": "gh200",
    "RTX-PRO-6000-BSE": "rtx pro 6000",
    "NVIDIA B200-SXM-180GB": "b200",
    "NVIDIA H200-SXM-141GB": "h200",
    "NVIDIA H100-SXM-80GB": "h100",
    "AMD Instinct MI300X 192GB HBM3": "mi300x",
    "AMD Instinct MI325X 256GB HBM3e": "mi325x",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx pro 6000",
    "A100": "a100 80gb",
    "B200": "b200",
    "H200": "h200",
    "H100": "h100",
    "MI300X": "mi300x",
}
_FORMATS = {"F16": "bfloat16", "Q4_K_M": "q4_k_m", "MXFP4": "mxfp4", "fp4": "nvfp4", "fp16": "float16"}
# TensorRT-LLM's own limit.
_MOST_ROWS = 2048

# Kinds that are counted, and not compared.
LEFT_OUT = "left out"

Rows = Iterator[dict[str, str]]


class Case(NamedTuple):
    """Something measured, and what is estimated of it."""

    kind: str
    device: str
    ratio: float


def deployed(row: dict[str, str], split: int) -> Deployment | None:
    """The deployment of a row; None where model, device or format are not known here."""
    shape = SHAPES.get(_MODELS.get(row["model"], ""))
    if shape is None:
        return None
    try:
        device = device_of(_DEVICES.get(row["gpu"], row["gpu"]))
        kept = format_of(_FORMATS.get(row["precision"], row["precision"]))
    except ConfigurationError:
        return None
    if row["model"].lower().startswith("gpt-oss"):
        kept = format_of("mxfp4")
    cache = format_of("fp8" if row["kv_dtype"] == "fp8" else "bfloat16")
    return Deployment(shape, device, split, kept, cache, head=kept if kept.kind == "gguf" else format_of("bfloat16"))


def one_request(rows: Rows) -> Iterator[Case]:
    """llama-bench: the mean of a text of that many tokens, written from nothing."""
    for row in rows:
        count = int(row["num_gpus"])
        deployment = deployed(row, 1)
        if row["metric"] != "decode_tps_mean_over_osl" or count != 1 or deployment is None:
            continue
        told = estimate(deployment, TYPICAL, Workload(1, float(row["osl"]), 1))
        yield Case(f"llama.cpp {row['precision']}, one request", row["gpu"], told.tpot * float(row["value"]))


def batches(rows: Rows) -> Iterator[Case]:
    """llama-batched-bench: a step of a batch that began together."""
    for row in rows:
        deployment = deployed(row, 1)
        if row["metric"] != "ms_per_decode_step" or deployment is None:
            continue
        told = estimate(
            deployment,
            TYPICAL,
            Workload(float(row["isl"]), float(row["osl"]), float(row["concurrency_or_batch"]), loop="static"),
        )
        yield Case("llama.cpp on GB10, a batch's step", row["gpu"], told.tpot / float(row["value"]) * 1e3)


def most(rows: Rows) -> Iterator[Case]:
    """TensorRT-LLM with all requests waiting."""
    for row in rows:
        if row["metric"] != "output_tps_total" or row["concurrency_or_batch"] != "max":
            continue
        count = int(row["num_gpus"])
        if row["parallelism"] != f"tp{count}":
            continue
        deployment = deployed(row, count)
        if deployment is None:
            continue
        if row["precision"] in ("fp8", "fp4"):
            # NVIDIA's checkpoints of these formats keep keys and values in eight bits, too.
            deployment = msgspec.structs.replace(deployment, cache=format_of("fp8"))
        inputs, outputs = float(row["isl"]), float(row["osl"])
        fits = memory_of(deployment, int(inputs + outputs)).max_concurrency
        if not fits:
            yield Case(f"{LEFT_OUT}: does not fit by the plan", row["gpu"], 1.0)
            continue
        told = most_throughput(deployment, TYPICAL, Workload(inputs, outputs, min(fits, _MOST_ROWS)))
        yield Case(f"TensorRT-LLM, most tokens/s, {row['precision']}", row["gpu"], float(row["value"]) / told)


def offline(rows: Rows) -> Iterator[Case]:
    """MLPerf: the most tokens a second of a node, by the layout that yields the most."""
    for row in rows:
        count, name = int(row["num_gpus"]), _MODELS.get(row["model"], "")
        if row["metric"] != "throughput_offline" or name not in _MLPERF or count != 8:
            continue
        inputs, outputs = _MLPERF[name]
        told = []
        for split in (1, 2, 4, 8):
            deployment = deployed(row, split)
            if deployment is None:
                break
            deployment = msgspec.structs.replace(deployment, cache=format_of("fp8"))
            fits = memory_of(deployment, inputs + outputs).max_concurrency
            if fits:
                workload = Workload(inputs, outputs, min(fits, _MOST_ROWS))
                told.append(count // split * most_throughput(deployment, TYPICAL, workload))
        if told:
            yield Case(f"MLPerf offline, {row['precision']}", row["gpu"], float(row["value"]) / max(told))


def cookbook(rows: Rows) -> Iterator[Case]:
    """SGLang's runs with tensor parallelism alone, without drafts and images: one request, and several."""
    for row in rows:
        count, size = int(row["num_gpus"]), float(row["concurrency_or_batch"])
        figure = {"ttft_mean": "TTFT", "tpot_mean": "TPOT"}.get(row["metric"])
        kept = _OWN_FORMATS.get(row["model"])
        plain = row["parallelism"] == f"TP{count}" and "spec" not in row["notes"] and "vision" not in row["notes"]
        if figure is None or kept is None or not plain:
            continue
        deployment = deployed({**row, "precision": kept}, count)
        if deployment is None:
            continue
        told = estimate(deployment, TYPICAL, Workload(float(row["isl"]), float(row["osl"]), size))
        seconds = told.ttft if figure == "TTFT" else told.tpot
        several = "one request" if size == 1 else f"{size:.0f} at a time"
        yield Case(f"SGLang's cookbook, {several}, {figure}", row["gpu"], seconds / float(row["value"]) * 1e3)


def apart(rows: Rows) -> Iterator[Case]:
    """Steps of replicas that decode while others compute prompts, of those layouts that say how many they are."""
    for row in rows:
        kind = re.fullmatch(r"P\d+x\(.*\)-D(\d+)x\(tp(\d+),adp(\d+),ep\d+,bs\d+\)", row["parallelism"])
        if row["metric"] != "tpot":
            continue
        if kind is None or not row["concurrency_or_batch"]:
            yield Case(f"{LEFT_OUT}: prompts apart, without the number of replicas or requests", row["gpu"], 1.0)
            continue
        replicas, split, groups = (int(part) for part in kind.groups())
        name, precision = row["model"].split("/")[-1], row["precision"]
        shape = SHAPES.get(OTHER_NAMES.get(name, name))
        if shape is None:
            continue
        called = table_format(name, precision)
        kept, attention = format_of(called), format_of("bfloat16") if called == "mxfp4" else None
        cache = format_of(cache_format(kept, row["gpu"], row["engine"]))
        deployment = Deployment(
            shape,
            device_of(row["gpu"]),
            split * groups,
            kept,
            cache=cache,
            attention_weights=attention,
            groups=groups,
        )
        requests = max(1.0, float(row["concurrency_or_batch"]) / replicas)
        workload = Workload(TRUE_LENGTH * float(row["isl"]), TRUE_LENGTH * float(row["osl"]), requests)
        told = decode_step(deployment, TYPICAL, requests, workload.middle_context).seconds
        yield Case("Prompts apart, TPOT", f"{row['gpu']}, {row['engine']}", told / float(row["value"]) * 1e3)


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--tables", type=Path, required=True, help="the folder of measurements")
    parser.add_argument("--devices", action="store_true", help="a row for each device, too")
    arguments = parser.parse_args()
    files: dict[str, Callable[[Rows], Iterator[Case]]] = {
        "llamacpp_xiongjiedai.csv": one_request,
        "llamacpp_dgx_spark.csv": batches,
        "trtllm_docs.csv": most,
        "mlperf_v5_1_llm.csv": offline,
        "sglang_cookbook.csv": cookbook,
        "inferencex_aic_disagg.csv": apart,
    }
    found = [case for name, read in files.items() for case in read(csv.DictReader((arguments.tables / name).open()))]
    groups: dict[str, list[float]] = defaultdict(list)
    for case in found:
        groups[case.kind].append(1 / case.ratio)
        if arguments.devices:
            groups[f"{case.kind}: {case.device}"].append(1 / case.ratio)
    table: list[tuple[object, ...]] = []
    for kind, ratios in groups.items():
        if kind.startswith(LEFT_OUT):
            table.append((kind, len(ratios), None, None, None))
            continue
        middle, ninety = errors(ratios)
        table.append((kind, len(ratios), f"{middle:.1%}", f"{ninety:.0%}", f"{median(ratios):.2f}"))
    reporting.report(
        "Times, or the inverse of tokens a second.",
        ("what", "points", "off, median", "p90", "measured / estimated, median"),
        table,
        "",
    )


if __name__ == "__main__":
    main()
