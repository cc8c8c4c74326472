"""Options of `penstock plan` and `penstock simulate`."""

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import KvCacheMemory, LongPrefill, PrefixCaching, TargetItl

PlannedModel = Annotated[
    str | None, typer.Argument(help="A directory, a GGUF file, a cached or bundled name; no weights are read.")
]


class Routers(enum.StrEnum):
    """By what a replica is chosen."""

    ROUND_ROBIN = "round-robin"
    LEAST_LOADED = "least-loaded"
    POWER_OF_TWO = "power-of-two"
    SESSION = "session"
    PREFIX = "prefix"
    ESTIMATED = "estimated"


@dataclass(frozen=True, kw_only=True)
class DeploymentOptions:
    """Which model on which devices."""

    model_config: Annotated[Path | None, typer.Option(metavar="FILE", help="A config.json, instead of MODEL.")] = None
    on: Annotated[
        str | None, typer.Option(help="Devices, such as 8xh100; this, or a file of `penstock calibrate`.")
    ] = None
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of a device that has what is put into it, such as 256GiB.")
    ] = None
    tensor_parallel_size: Annotated[
        int | None,
        typer.Option(help="Devices that share each layer, or processes of a processor; all of --on without.", min=1),
    ] = None
    pipeline_parallel_size: Annotated[
        int, typer.Option(help="Parts of the layers, each on devices of its own, or in a process.", min=1)
    ] = 1
    context_parallel_size: Annotated[
        int, typer.Option(help="Processes of a processor that each keep a part of every context.", min=1)
    ] = 1
    data_parallel_size: Annotated[
        int, typer.Option(help="Groups of devices with own requests, that share a model's routed experts.", min=1)
    ] = 1
    dtype: Annotated[str | None, typer.Option(help="Format of weights; without it, what the config says.")] = None
    kv_cache_dtype: Annotated[str, typer.Option(help="Format of keys and values.")] = "bfloat16"
    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Measured runs of this deployment, for estimates to stand on."),
    ] = None
    kv_disk: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE,read=…,write=…",
            help="A disk for prefixes beside each replica's KV pool, such as 20GiB,read=2GB/s,write=500MB/s.",
        ),
    ] = None
    kv_policy: Annotated[
        str | None, typer.Option(metavar="KIND:TOKENS", help="What each request holds of its context, as h2o:2048.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class MoneyOptions:
    """What devices, those who operate them, and others cost."""

    price: Annotated[
        str | None,
        typer.Option(
            metavar="DOLLARS|KIND",
            help="For a device an hour; or on-demand, reserved or own of the price list. Without it, what that has.",
        ),
    ] = None
    prices: Annotated[
        str | None,
        typer.Option(metavar="FILE|litellm", help="Prices in CSV or LiteLLM's JSON, or those of an installed litellm."),
    ] = None
    operations: Annotated[float, typer.Option(help="Dollars a month for those who operate it.", min=0)] = 0.0
    utilisation: Annotated[
        float | None, typer.Option(help="Part of what devices could serve in a month that they do serve.")
    ] = None
    api_price: Annotated[
        str | None,
        typer.Option(metavar="IN,OUT|MODEL", help="Dollars a million tokens that an API asks, or a model of the list."),
    ] = None
    buy: Annotated[
        str | None,
        typer.Option(metavar="DOLLARS,…", help="For a device that is bought: 25000,years=4,watts=700,pue=1.3,kwh=0.1."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RoleOptions:
    """Replicas that compute prompts for others, which decode."""

    prefill_replicas: Annotated[
        int | None, typer.Option(help="Replicas that compute prompts alone, for --decode-replicas.", min=1)
    ] = None
    decode_replicas: Annotated[
        int | None, typer.Option(help="Replicas that decode, and compute prompts that are not handed over.", min=1)
    ] = None
    kv_transfer: Annotated[
        str | None, typer.Option(metavar="RATE", help="Of blocks to a replica that decodes, such as 10GB/s.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """Replicas that are simulated, and what bounds the steps of each."""

    replicas: Annotated[
        int | None, typer.Option(help="Replicas that share the requests; what --on has without.", min=1)
    ] = None
    roles: RoleOptions = RoleOptions()
    router: Annotated[Routers, typer.Option(help="Which replica a request goes to.")] = Routers.ROUND_ROBIN
    fluid: Annotated[
        bool, typer.Option("--fluid", help="As a flow, without chance: for fleets too large to play each request.")
    ] = False
    max_num_seqs: Annotated[int, typer.Option(help="Sequences that run at a time on a replica.", min=1)] = 256
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens of a step.", min=1)] = 2048
    long_prefill_token_threshold: LongPrefill = None
    target_itl: TargetItl = None
    kv_cache_memory: KvCacheMemory = None
    enable_prefix_caching: PrefixCaching = True
    price: Annotated[
        str | None,
        typer.Option(metavar="DOLLARS|KIND", help="For a device an hour; without it, what the price list has."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class TrafficOptions:
    """The requests of a simulation."""

    rate: Annotated[float | None, typer.Option(help="Requests a second that come at random times.")] = None
    concurrency: Annotated[
        int | None, typer.Option(help="Requests at a time: one that ends is followed by another.", min=1)
    ] = None
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Times and lengths of Azure's or Mooncake's traces.")
    ] = None
    time_scale: Annotated[float, typer.Option(help="Multiplies a trace's times: 0.5 is twice as fast.")] = 1.0
    length_scale: Annotated[float, typer.Option(help="Multiplies the lengths of a trace.")] = 1.0
    requests: Annotated[
        int, typer.Option(help="How many; of a trace, at most. With --turns, conversations.", min=1)
    ] = 1000
    input_len: Annotated[
        str, typer.Option(metavar="TOKENS", help="Of prompts: 64, 64-256, normal:128,32 or lognormal:128,32.")
    ] = "1024"
    output_len: Annotated[str, typer.Option(metavar="TOKENS", help="Of outputs, in the same way.")] = "256"
    prefix_len: Annotated[int, typer.Option(help="Tokens that prompts begin with, shared by several.", min=0)] = 0
    prefixes: Annotated[int, typer.Option(help="Different ones, of which each prompt has one.", min=1)] = 1
    turns: Annotated[int, typer.Option(help="Of each conversation; a later one contains those before it.", min=1)] = 1
    think_time: Annotated[float, typer.Option(help="Seconds between an answer and the next turn.", min=0.0)] = 0.0
    seed: Annotated[int, typer.Option(help="Of the random numbers.")] = 0
