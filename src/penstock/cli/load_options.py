"""Options of `penstock bench serve`."""

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


class Endpoint(enum.Enum):
    """The endpoint that requests are sent to."""

    COMPLETIONS = "completions"
    CHAT = "chat"


class Prompts(enum.Enum):
    """What random prompts are made of."""

    IDS = "ids"
    TEXT = "text"


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """What each request looks like."""

    model: Annotated[str | None, typer.Option("--model", help="To ask for; without it, the first that is listed.")] = (
        None
    )
    endpoint: Annotated[Endpoint, typer.Option(help="/v1/completions or /v1/chat/completions.")] = Endpoint.COMPLETIONS
    api_key: Annotated[
        str | None,
        typer.Option(metavar="KEY|-", help="- reads it from standard input; PENSTOCK_API_KEY does the same."),
    ] = None
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.", min=0.0)] = 0.0
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Answers are as long as asked for; the server must know ignore_eos.")
    ] = False
    extra_body: Annotated[
        str | None, typer.Option(metavar="JSON", help='Fields for every body, such as {"top_p": 0.9}.')
    ] = None
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time that each request has.")] = 600.0
    cancel: Annotated[
        float, typer.Option(metavar="SHARE", help="Requests that the client leaves after a random number of chunks.")
    ] = 0.0


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """Options about what the requests ask for."""

    input_len: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS", help="Of random prompts: 64, 64-256, normal:128,32 or lognormal:128,32; 128 without."
        ),
    ] = None
    output_len: Annotated[
        str | None, typer.Option(metavar="TOKENS", help="Most of each answer, in the same forms; 128 without.")
    ] = None
    prompts: Annotated[
        Prompts | None, typer.Option(help="Random token ids, or words; ids where the endpoint takes them.")
    ] = None
    token_ids: Annotated[
        str | None, typer.Option(metavar="FIRST-LAST", help="Which ids are drawn; 100-999 without.")
    ] = None
    prefix_len: Annotated[int, typer.Option(help="Tokens of a prefix that prompts share, on top.", min=0)] = 0
    prefixes: Annotated[int, typer.Option(help="How many different prefixes there are.", min=1)] = 1
    turns: Annotated[int, typer.Option(help="Of each conversation; a later one contains those before it.", min=1)] = 1
    think_time: Annotated[float, typer.Option(help="Seconds between an answer and the next turn.", min=0.0)] = 0.0
    dataset: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='JSONL with "prompt" or "messages", and maybe "output_length".'),
    ] = None
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Lengths and times: CSV as Azure's traces, or JSONL as Mooncake's."),
    ] = None
    length_scale: Annotated[float, typer.Option(help="Factor of a trace's lengths.")] = 1.0
    seed: Annotated[int, typer.Option(help="Of everything that is random.", min=0)] = 0


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How much comes, and when."""

    concurrency: Annotated[
        str | None, typer.Option(metavar="N", help="Closed loop: requests at a time; several separated by commas.")
    ] = None
    rate: Annotated[
        str | None, typer.Option(metavar="R", help="Open loop: requests a second; several separated by commas.")
    ] = None
    burstiness: Annotated[
        float, typer.Option(help="Shape of the Gamma distribution of the gaps; 1 is a Poisson process.")
    ] = 1.0
    time_scale: Annotated[
        float | None, typer.Option(help="Factor of a trace's times; 0.5 replays it twice as fast.")
    ] = None
    find_rate: Annotated[
        bool, typer.Option("--find-rate", help="Look for the largest rate that meets --slo at p99.")
    ] = False
    slo: Annotated[
        str | None, typer.Option(metavar="LIMITS", help="Service levels: ttft=500ms,tpot=50ms, of ttft tpot itl e2e.")
    ] = None
    requests: Annotated[
        int | None, typer.Option(help="Of each stage; conversations, where there are --turns.", min=1)
    ] = None
    duration: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Of each stage; what has begun is waited for.")
    ] = None
    warmup: Annotated[int, typer.Option(help="Requests before all stages that do not count.", min=0)] = 10


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Options about where the figures are written."""

    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all settings and figures to this file.")
    ] = None
    records: Annotated[bool, typer.Option("--records", help="Each request's figures too, in the file of --json.")] = (
        False
    )
    plots: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw the figures; needs matplotlib (the extra bench).")
    ] = None
