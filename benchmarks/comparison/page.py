"""The page of a comparison, in Markdown: figures, ratios, versions, and why cells are empty."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from comparison.contenders import CONTENDERS, LARGE, MACHINE, OURS, TOY, TOY_RUNS
from comparison.record import Record, best, ratio
from reporting import table

Read = Callable[[dict[str, Any]], float | None]
NAMES = [contender.name for contender in CONTENDERS]
TOY_NAMES = [contender.name for contender in CONTENDERS if contender.toy]
PEER_NAMES = [contender.name for contender in CONTENDERS if contender.engine != OURS]
TOY_BATCHES = (1, 32)


def page(record: Record) -> str:
    """The whole page."""
    sections = [
        "# Peers, side by side",
        _introduction(record),
        "## 1.24B parameters, tokens per second",
        _speeds(record),
        _empty_cells(record, LARGE),
        "## Penstock int4 against the best mode of all peers",
        _ratios(record, f"{OURS}-int4", PEER_NAMES, _measures(record)),
        "## Penstock bf16 against vLLM bf16",
        _ratios(record, f"{OURS}-bf16", ["vllm-bf16"], _measures(record)),
        "## Penstock against llama.cpp on one Q4_0 file",
        _ratios(record, f"{OURS}-q4_0", ["llama-cpp-q4_0"], _measures(record)),
        "## Penstock against llama.cpp on one Q4_K_M file",
        _ratios(record, f"{OURS}-q4_k_m", ["llama-cpp-q4_k_m"], _measures(record)),
        "## Toy model, milliseconds a step",
        "6 layers of width 256, vocabulary 32,000, bfloat16 on disk: what an engine costs by itself.",
        _toy(record),
        _empty_cells(record, TOY),
        "## Versions and settings",
        _versions(record),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def command(record: Record) -> str:
    """What measured the figures, without a machine's paths."""
    engines = [
        contender.engine
        for contender in CONTENDERS
        if contender.engine != OURS and (record.figures(contender.name, LARGE) or record.figures(contender.name, TOY))
    ]
    given = [f"--{engine} PYTHON" for engine in dict.fromkeys(engines)]
    workload = record.workload
    options = [f"--rounds {record.rounds()}", f"--decode-steps {workload.decode_steps}", f"--runs {workload.runs}"]
    return " ".join(["python benchmarks/compare_peers.py --models OUT", *given, *options])


def _introduction(record: Record) -> str:
    machine, workload = record.machine, record.workload
    steps, runs = workload.decode_steps, workload.runs
    paragraphs = [
        "One run on one machine. This command writes the page, and the raw figures to the JSON file beside it:",
        f"```\n{command(record)}\n```",
        f"Machine: {machine.cpu}, {machine.cores} cores, {machine.memory_gib:g} GiB.\n\n{_ceilings(record)}",
    ]
    notes = [
        f"Prompts are random, sampling is greedy, there is no prefix cache, and {workload.threads} threads compute.",
        "*Prefill 512* is one prompt of 512 tokens over the time to its first token.",
        f"*Decode, batch B* is B prompts of 16 tokens with {steps} further tokens each,\n"
        f"  over (time for {steps + 1} − time for 1).",
        f"Rounds: {record.rounds()}. In each, every contender runs once in a process of its own;\n"
        f"  the best of {runs} runs counts (toy: {TOY_RUNS}). Cells are medians over the rounds.",
        "llama.cpp is timed without sampling.",
        "*Of the roofline*: bytes of weights that a step reads × tokens per second at batch 1,\n"
        "  over the memory reads measured in the same round.",
        "*Ready* is from launching the process to the loaded model, imports included.",
    ]
    return "\n\n".join([*paragraphs, "\n".join(f"- {note}" for note in notes)])


def _ceilings(record: Record) -> str:
    reads = list(record.read_bandwidth().values())
    if not reads:
        errors = [run.error for run in record.runs if run.contender == MACHINE and run.error]
        return f"Its ceilings were not measured{': ' + errors[-1] if errors else ''}."
    figures = list(record.figures(MACHINE, LARGE).values())
    peaks = []
    for name in figures[-1]["arithmetic"]:
        peak = median(entry["arithmetic"][name] for entry in figures)
        if peak:
            peaks.append(f"{name} {peak:,.0f} GOP/s")
    return (
        f"Ceilings, measured at the start of each round: memory reads {median(reads):.1f} GB/s "
        f"({min(reads):.1f} to {max(reads):.1f}); in registers {', '.join(peaks)}."
    )


def _measures(record: Record) -> list[tuple[str, Read]]:
    """The rows that are speeds: name, and how it is read from a child's figures."""
    rows: list[tuple[str, Read]] = [("prefill 512", lambda figures: figures["prefill"])]
    return rows + [(f"decode, batch {size}", _decode(size)) for size in record.workload.batch_sizes]


def _decode(size: int) -> Read:
    return lambda figures: figures["decode"].get(str(size))


def _step(size: int) -> Read:
    """Milliseconds of a step at that batch size."""

    def read(figures: dict[str, Any]) -> float | None:
        speed = figures["decode"].get(str(size))
        return None if speed is None else size * 1e3 / speed

    return read


def _median(values: dict[int, float]) -> float | None:
    return median(values.values()) if values else None


def _speeds(record: Record) -> str:
    rows: list[list[object]] = []
    for name, read in _measures(record):
        rows.append([name, *(_median(record.values(contender, LARGE, read)) for contender in NAMES)])
    shares = [_roofline(record, contender) for contender in NAMES]
    rows.append(["of the roofline at batch 1", *(None if share is None else f"{share:.0%}" for share in shares)])
    ready = [_median(record.values(contender, LARGE, lambda figures: figures["ready_seconds"])) for contender in NAMES]
    rows.append(["ready, s", *(None if seconds is None else f"{seconds:.1f}" for seconds in ready)])
    return table(["", *NAMES], rows, empty="")


def _roofline(record: Record, contender: str) -> float | None:
    """Share of the measured memory reads that weights take at batch 1: the median of the rounds that have both."""

    def gigabytes_a_second(figures: dict[str, Any]) -> float | None:
        speed = figures["decode"].get("1")
        return None if speed is None else figures["weight_bytes"] * speed / 1e9

    found = ratio(record.values(contender, LARGE, gigabytes_a_second), record.read_bandwidth())
    return None if found is None else found.median


def _ratios(record: Record, ours: str, peers: Sequence[str], measures: Sequence[tuple[str, Read]]) -> str:
    """One row for each measure: both medians, and the quotients within rounds."""
    rows: list[list[object]] = []
    for name, read in measures:
        mine = record.values(ours, LARGE, read)
        found = best([(peer, record.values(peer, LARGE, read)) for peer in peers])
        peer, theirs = found or (None, {})
        quotient = ratio(mine, theirs)
        row: list[object] = [name, peer, _median(theirs), _median(mine)]
        if quotient is None:
            row += [None] * 4
        else:
            row += [f"{value:.2f}" for value in (quotient.median, quotient.least, quotient.greatest)]
            row.append(quotient.pairs)
        rows.append(row)
    return table(["", "peer", "its speed", ours, "ratio, median", "least", "greatest", "rounds"], rows, empty="")


def _toy(record: Record) -> str:
    rows: list[list[object]] = []
    for size in TOY_BATCHES:
        values = (_median(record.values(contender, TOY, _step(size))) for contender in TOY_NAMES)
        rows.append([f"batch {size}", *(None if value is None else f"{value:.2f}" for value in values)])
    return table(["", *TOY_NAMES], rows, empty="")


def _empty_cells(record: Record, checkpoint: str) -> str:
    """Why contenders have no figures, or not in every round."""
    lines = []
    for name in NAMES if checkpoint == LARGE else TOY_NAMES:
        errors = [
            f"round {run.round + 1}: {run.error}"
            for run in record.runs
            if (run.contender, run.checkpoint) == (name, checkpoint) and run.error
        ]
        if errors:
            lines.append(f"- {name} failed in {'; '.join(errors)}")
        elif not record.figures(name, checkpoint):
            lines.append(f"- {name} is missing: {record.missing.get(f'{name}/{checkpoint}', 'it was not run yet')}")
    return "\n".join(["Cells that are empty or lack a round:", "", *lines]) if lines else ""


def _versions(record: Record) -> str:
    rows = []
    for name in NAMES:
        figures = list(record.figures(name, LARGE).values()) or list(record.figures(name, TOY).values())
        if figures:
            rows.append([name, _pairs(figures[-1]["versions"]), _pairs(figures[-1]["settings"])])
    return table(["", "versions", "settings"], rows, empty="")


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items() if value is not None)
