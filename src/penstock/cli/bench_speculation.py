"""`penstock bench speculation`: what drafts gain, by who drafts, how deep, how warm, and for how many at a time."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.bench.drawing import check_plots
from penstock.bench.prompts import SCHEMAS, make_prompts
from penstock.bench.speculation import Setting, SpeculationFigures, measure_speculation
from penstock.bench.speculation_plot import draw_speculation
from penstock.cli.files import check_writable, json_bytes
from penstock.configuration.speculation import CHECKPOINTS
from penstock.core.errors import ConfigurationError
from penstock.core.grammar import Grammar
from penstock.llm import LLM, chat_encoder

PROMPTS = 64
WIDTH = 156


def run_bench_speculation(
    engine: dict[str, Any],
    proposers: list[str],
    depths: list[tuple[int | None, int]],
    temperatures: list[float],
    batch_sizes: list[int],
    workload: str,
    output_len: int,
    rounds: int,
    json_file: Path | None,
    plots: Path | None,
) -> None:
    """Measure, show the figures as they come, and write and draw them where asked. Raises ConfigurationError."""
    if json_file is not None:
        check_writable(json_file)
    if plots is not None:
        check_plots(plots)
    for option in ("depth", "width"):
        if engine.get(f"speculative_{option}") is not None:
            raise ConfigurationError(
                f"--speculative-{option} is one {option}; give those to compare with --depth, such as 4 or 4+2."
            )
    engine = {**engine, "max_num_seqs": max(batch_sizes)}
    plain = LLM(**_options(engine, Setting("off", None)))
    encode = None if plain.tokenizer is None else chat_encoder(plain.tokenizer).encode
    prompts = [{"prompt_token_ids": ids} for ids in make_prompts(workload, PROMPTS, encode, plain.vocab_size)]
    schema = SCHEMAS.get(workload)
    held_to = None if schema is None else Grammar.json_schema(dict(schema))
    # A narrower table would cut its headings.
    console = Console(width=max(WIDTH, Console().width))
    table = _table(f"{engine['model']}: {workload}, {output_len} tokens out at most, median of {rounds}")
    results: list[SpeculationFigures] = []
    with console.status("measuring"):
        for proposer in proposers:
            for depth, width in depths:
                setting = Setting(proposer, depth, width)
                drafting = LLM(**_options(engine, setting))
                for figures in measure_speculation(
                    plain, drafting, setting, prompts, temperatures, batch_sizes, output_len, rounds, grammar=held_to
                ):
                    results.append(figures)
                    table.add_row(*_row(figures))
    console.print(table)
    if json_file is not None:
        json_file.write_bytes(json_bytes({"results": results}))
    if plots is not None:
        written = draw_speculation(results, plots)
        console.print(f"Drawn: {written}")


def _options(engine: dict[str, Any], setting: Setting) -> dict[str, Any]:
    """Of an engine with this setting: what another proposer's options say is left out."""
    drafts = {"speculative_depth": setting.depth, "speculative_width": setting.width or None}
    options = {**engine, "speculative": setting.proposer, **drafts}
    if setting.proposer not in ("auto", *CHECKPOINTS):
        options |= {"draft_model": None, "draft_quantization": "auto"}
    if setting.proposer != "chain":
        options["chain_model"] = None
    if setting.proposer != "self":
        options["speculative_layers"] = None
    if setting.proposer not in ("auto", "ngram", "chain"):
        options["speculative_memory"] = 0
    if setting.proposer == "off":
        options["speculative_acceptance"] = "coupled"
    return options


def _table(title: str) -> Table:
    table = Table(title=title)
    for heading in ("proposer", "depth", "temperature", "batch", "right", "tokens a row", "by theory"):
        table.add_column(heading, justify="right")
    for heading in ("draft's cost", "tokens/s", "without", "speed-up", "decoding", "by theory"):
        table.add_column(heading, justify="right")
    return table


def _row(figures: SpeculationFigures) -> list[str]:
    setting = figures.setting
    return [
        setting.proposer,
        f"auto, {figures.drafted:.1f}" if setting.depth is None else str(setting),
        f"{figures.temperature:g}",
        str(figures.batch_size),
        f"{figures.acceptance:.0%}",
        f"{figures.tokens_per_row:.2f}",
        f"{figures.expected_tokens:.2f}",
        f"{figures.cost:.3f}",
        f"{figures.tokens_per_second:,.0f}",
        f"{figures.plain_tokens_per_second:,.0f}",
        f"{figures.speedup:.2f}",
        f"{figures.decoding_speedup:.2f}",
        f"{figures.expected_speedup:.2f}",
    ]
