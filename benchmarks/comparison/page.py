"""The page of a comparison, in Markdown: figures, ratios, versions, and why cells are empty."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from comparison.contenders import (
    CONTENDERS,
    GPT_OSS,
    LARGE,
    LEFT_OUT,
    MACHINE,
    MIXTRAL,
    MLA,
    MOE,
    OURS,
    TOY,
    TOY_RUNS,
    TRAINED,
    running,
)
from comparison.record import Record, best, ratio
from reporting import table

Read = Callable[[dict[str, Any]], float | None]
PEER_NAMES = [contender.name for contender in CONTENDERS if contender.engine != OURS]
TOY_BATCHES = (1, 32)
MOE_SHAPE = (
    "The shape of Qwen3-MoE: 20 layers of width 1,536, each with 64 experts of width 512. A token has 8 of them, and\n"
    "takes 0.6 of 3.2 billion parameters. Bytes that a step reads are those of the experts that one token has."
)
MIXTRAL_SHAPE = (
    "The shape of Mixtral: 16 layers of width 1,024, each with 8 experts of width 3,584. A token has 2 of them, and\n"
    "takes 0.4 of 1.5 billion parameters."
)
GPT_OSS_SHAPE = (
    "gpt-oss at half of its width: 12 layers of width 1,440, each with 32 experts in MXFP4, 4 for a token. Every\n"
    "other layer sees 128 positions. A token takes 0.5 of 2.6 billion parameters."
)
MLA_SHAPE = (
    "DeepSeek-V2-Lite without experts: 27 layers of width 2,048, whose 16 heads share a latent vector of 512 numbers.\n"
    "1.5 billion parameters."
)
_FASTER = "Memory was read faster than when it was measured, so that there are no shares of the roofline."
TRAINED_HEADING = "Penstock against llama.cpp on Qwen2.5-Coder-1.5B-Instruct in Q4_K_M, as its makers publish it"


def page(record: Record) -> str:
    """The whole page."""
    sections = [
        _title(record),
        _introduction(record),
        *_section(record, LARGE, "1.24B parameters, tokens per second"),
        *_compared(record, "Penstock int4 against the best mode of all peers", f"{OURS}-int4", PEER_NAMES),
        *_compared(record, "Penstock bf16 against vLLM bf16", f"{OURS}-bf16", ["vllm-bf16"]),
        *_compared(record, "Penstock against llama.cpp on one Q4_0 file", f"{OURS}-q4_0", ["llama-cpp-q4_0"]),
        *_compared(record, "Penstock against llama.cpp on one Q4_K_M file", f"{OURS}-q4_k_m", ["llama-cpp-q4_k_m"]),
        *_compared(record, TRAINED_HEADING, f"{OURS}-trained", ["llama-cpp-trained"], TRAINED),
        "" if _is_of_others(record, TRAINED) else _empty_cells(record, TRAINED),
        *_section(record, MOE, "Mixture of 64 experts, tokens per second", MOE_SHAPE),
        *_against(record, MOE),
        *_section(record, MIXTRAL, "Mixture of 8 experts, tokens per second", MIXTRAL_SHAPE),
        *_against(record, MIXTRAL),
        *_section(record, GPT_OSS, "gpt-oss, tokens per second", GPT_OSS_SHAPE),
        *_compared(record, "gpt-oss: Penstock against the best of its peers", f"{OURS}-mxfp4", PEER_NAMES, GPT_OSS),
        *_against_one(record, GPT_OSS, "Penstock against llama.cpp on one file of MXFP4", "mxfp4"),
        *_section(record, MLA, "Latent attention, tokens per second", MLA_SHAPE),
        *_compared(record, "Latent attention: Penstock int4 against its peers", f"{OURS}-int4", PEER_NAMES, MLA),
        *_against_one(record, MLA, "Latent attention: Penstock against llama.cpp on one file of Q4_0", "mla-q4_0"),
        *_compared(record, "Latent attention: Penstock bf16 against vLLM's", f"{OURS}-bf16", ["vllm-bf16"], MLA),
        *_toys(record),
        "## Versions and settings",
        _versions(record),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _title(record: Record) -> str:
    if not _is_of_others(record, LARGE):
        return "# Peers, side by side"
    names = {MOE: "Mixtures", GPT_OSS: "gpt-oss", MLA: "Latent attention"}
    return f"# {next(name for each, name in names.items() if _has_figures(record, each))}, side by side"


def _section(record: Record, checkpoint: str, heading: str, shape: str = "") -> tuple[str, ...]:
    """The speeds on a checkpoint; nothing where all were left out, or it is not there."""
    if _is_of_others(record, checkpoint) or (checkpoint != LARGE and not _has_figures(record, checkpoint)):
        return ()
    return f"## {heading}", shape, _speeds(record, checkpoint), _empty_cells(record, checkpoint)


def _has_figures(record: Record, checkpoint: str) -> bool:
    return any(record.figures(name, checkpoint) for name in _asked(record, checkpoint))


def _is_of_others(record: Record, checkpoint: str) -> bool:
    """Whether the run was of mixtures alone."""
    mixtures = any(_has_figures(record, each) for each in (MOE, GPT_OSS, MLA))
    return mixtures and not _has_figures(record, checkpoint)


def _against(record: Record, checkpoint: str) -> tuple[str, ...]:
    experts = {MOE: "64 experts", MIXTRAL: "8 experts"}[checkpoint]
    best_of = f"Penstock int4 against the best of its peers, {experts}"
    found = _compared(record, best_of, f"{OURS}-int4", PEER_NAMES, checkpoint)
    for kind in ("q4_0", "q8_0"):
        heading = f"Penstock against llama.cpp on one file of {kind.upper()}, {experts}"
        found += _compared(record, heading, f"{OURS}-moe-{kind}", [f"llama-cpp-moe-{kind}"], checkpoint)
    both = f"Penstock bf16 against vLLM's, {experts}"
    return found + _compared(record, both, f"{OURS}-bf16", ["vllm-bf16"], checkpoint)


def _against_one(record: Record, checkpoint: str, heading: str, kind: str) -> tuple[str, ...]:
    return _compared(record, heading, f"{OURS}-{kind}", [f"llama-cpp-{kind}"], checkpoint)


def _toys(record: Record) -> tuple[str, ...]:
    if _is_of_others(record, TOY):
        return ()
    return (
        "## Toy model, milliseconds a step",
        "6 layers of width 256, vocabulary 32,000, bfloat16 on disk: what an engine costs by itself.",
        _toy(record),
        _empty_cells(record, TOY),
    )


def command(record: Record) -> str:
    """What measured the figures, without a machine's paths."""
    engines = [
        contender.engine
        for contender in CONTENDERS
        if contender.engine != OURS
        and any(record.figures(contender.name, checkpoint) for checkpoint in contender.models)
    ]
    given = [f"--{engine} PYTHON" for engine in dict.fromkeys(engines)]
    workload = record.workload
    options = [f"--rounds {record.rounds()}", f"--decode-steps {workload.decode_steps}", f"--runs {workload.runs}"]
    asked = [each.name for each in CONTENDERS if any(each.name in _asked(record, model) for model in each.models)]
    if len(asked) < len(CONTENDERS):
        options.append(f"--contenders {','.join(asked)}")
    return " ".join(["python benchmarks/compare_peers.py --models OUT", *given, *options])


def _asked(record: Record, checkpoint: str) -> list[str]:
    """Who was to run a checkpoint."""
    return [name for name in running(checkpoint) if record.missing.get(f"{name}/{checkpoint}") != LEFT_OUT]


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


def _speeds(record: Record, checkpoint: str) -> str:
    names, rows = _asked(record, checkpoint), list[list[object]]()
    for name, read in _measures(record):
        rows.append([name, *(_median(record.values(contender, checkpoint, read)) for contender in names)])
    shares = [_roofline(record, contender, checkpoint) for contender in names]
    faster = any(share is not None and share > 1 for share in shares)
    if not faster:
        rows.append(["of the roofline at batch 1", *(None if share is None else f"{share:.0%}" for share in shares)])
    ready = [
        _median(record.values(contender, checkpoint, lambda figures: figures["ready_seconds"])) for contender in names
    ]
    rows.append(["ready, s", *(None if seconds is None else f"{seconds:.1f}" for seconds in ready)])
    found = table(["", *names], rows, empty="")
    return f"{found}\n\n{_FASTER}" if faster else found


def _roofline(record: Record, contender: str, checkpoint: str) -> float | None:
    """Share of the measured memory reads that weights take at batch 1: the median of the rounds that have both."""

    def gigabytes_a_second(figures: dict[str, Any]) -> float | None:
        speed = figures["decode"].get("1")
        return None if speed is None else figures["weight_bytes"] * speed / 1e9

    if checkpoint in (MOE, MIXTRAL, GPT_OSS) and not contender.startswith(OURS):
        # Others say how large their files are.
        return None
    found = ratio(record.values(contender, checkpoint, gigabytes_a_second), record.read_bandwidth())
    return None if found is None else found.median


def _compared(
    record: Record, heading: str, ours: str, peers: Sequence[str], checkpoint: str = LARGE
) -> tuple[str, ...]:
    """Heading and table of one of ours beside peers, one row for each measure: both medians, and the quotients within
    rounds. Nothing where one side was left out.
    """
    asked = set(_asked(record, checkpoint))
    if ours not in asked or asked.isdisjoint(peers) or _is_of_others(record, checkpoint):
        return ()
    rows: list[list[object]] = []
    for name, read in _measures(record):
        mine = record.values(ours, checkpoint, read)
        found = best([(peer, record.values(peer, checkpoint, read)) for peer in peers])
        peer, theirs = found or (None, {})
        quotient = ratio(mine, theirs)
        row: list[object] = [name, peer, _median(theirs), _median(mine)]
        if quotient is None:
            row += [None] * 4
        else:
            row += [f"{value:.2f}" for value in (quotient.median, quotient.least, quotient.greatest)]
            row.append(quotient.pairs)
        rows.append(row)
    columns = ["", "peer", "its speed", ours, "ratio, median", "least", "greatest", "rounds"]
    return f"## {heading}", table(columns, rows, empty="")


def _toy(record: Record) -> str:
    names, rows = _asked(record, TOY), list[list[object]]()
    for size in TOY_BATCHES:
        values = (_median(record.values(contender, TOY, _step(size))) for contender in names)
        rows.append([f"batch {size}", *(None if value is None else f"{value:.2f}" for value in values)])
    return table(["", *names], rows, empty="")


def _empty_cells(record: Record, checkpoint: str) -> str:
    """Why contenders have no figures, or not in every round."""
    lines = []
    for name in _asked(record, checkpoint):
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
    for contender in CONTENDERS:
        found = (record.figures(contender.name, checkpoint).values() for checkpoint in contender.models)
        if figures := list(next(filter(None, found), ())):
            rows.append([contender.name, _pairs(figures[-1]["versions"]), _pairs(figures[-1]["settings"])])
    return table(["", "versions", "settings"], rows, empty="")


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items() if value is not None)
