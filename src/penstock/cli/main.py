"""`penstock`: the command that users type."""

import atexit
import enum
import gc
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli import gateway_options, join, key_command, load_options, options, plan_commands, serve_options
from penstock.cli.cache_commands import cache
from penstock.cli.companions import With, companions
from penstock.cli.fleet_commands import fleet
from penstock.cli.groups import with_groups
from penstock.cli.handover_options import HandoverArguments
from penstock.cli.tenant_commands import tenant
from penstock.core.errors import PenstockError
from penstock.runtime.threads import limit_spinning


class MetricsFile(enum.Enum):
    """What can be made of the metrics' definitions."""

    DASHBOARD = "dashboard"
    GATEWAY_DASHBOARD = "gateway-dashboard"
    ALERTS = "alerts"
    TABLE = "table"


app = typer.Typer(
    help="Serve large language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help and plain errors: names of options are never cut, and can be copied.
    rich_markup_mode=None,
)
bench = typer.Typer(
    help="Measure what this machine, or a server, reaches.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(bench, name="bench")
app.add_typer(tenant, name="tenant")
app.add_typer(cache, name="cache")
app.add_typer(fleet, name="fleet")


@app.callback(invoke_without_command=True)
def _version(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.command()
@with_groups
def serve(
    model: options.Model = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 8000,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="Name in the API instead of MODEL; may be given several times.")
    ] = None,
    with_: With = None,
    explain_config: Annotated[
        bool, typer.Option("--explain-config", help="Print every setting and why it has its value, and exit.")
    ] = False,
    max_num_seqs: options.MaxNumSeqs = None,
    enable_prefix_caching: options.PrefixCaching = True,
    *,
    server: serve_options.ServeArguments,
    computing: options.EngineArguments,
    simulation: options.SimulationArguments,
    handover: HandoverArguments,
) -> None:
    """Serve a model, and others beside it, over an OpenAI-compatible API."""
    from penstock.cli.log_format import set_up_logging
    from penstock.cli.log_stream import unfailing_stderr
    from penstock.cli.serve import explain_serve, run_serve
    from penstock.configuration.options import EngineOptions

    names, beside = tuple(served_model_name or ()), companions(with_)
    access, serving = server.access.who_may_ask(), server.serving(host, port, names, beside)
    batch = {"max_num_seqs": max_num_seqs, "enable_prefix_caching": enable_prefix_caching}
    engine = computing.engine(model, **batch, **vars(simulation), **handover.engine(alone=not beside))
    with unfailing_stderr():
        set_up_logging(server.records.log.log_level, server.records.log.log_format)
        if explain_config:
            explain_serve(EngineOptions.of(**engine), serving, access)
        else:
            run_serve(EngineOptions.of(**engine), serving, access)


@app.command()
@with_groups
def gateway(
    replica: gateway_options.Replica = None,
    config: gateway_options.Config = None,
    policy: gateway_options.PolicyName = None,
    prompts: gateway_options.Prompts = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 8080,
    *,
    arguments: gateway_options.GatewayArguments,
) -> None:
    """One address in front of many replicas: each request goes where it is answered first."""
    from penstock.cli.gateway import run_gateway
    from penstock.cli.log_format import set_up_logging
    from penstock.cli.log_stream import unfailing_stderr
    from penstock.cli.plan_prices import installed_prices
    from penstock.gateway.listed import ListedPrices
    from penstock.gateway.options import fleet_of

    options, access = arguments.gateway(host, port), arguments.access.who_may_ask()
    prices, joinable = ListedPrices(installed_prices), options.join_token is not None
    fleet = fleet_of(config, replica or (), policy, prompts or (), joinable=joinable, fill=prices.fill)
    with unfailing_stderr():
        set_up_logging(arguments.log.log_level, arguments.log.log_format)
        run_gateway(fleet, options, access, prices.taken)


@app.command()
@with_groups
def run(
    model: options.Model = None,
    prompt: Annotated[list[str] | None, typer.Argument(help="Ask this one thing; without it, chat.")] = None,
    system: Annotated[str | None, typer.Option(help="System message that begins the conversation.")] = None,
    chat_template: options.ChatTemplateFile = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens of an answer.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the most likely token.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the random numbers.")] = None,
    *,
    computing: options.EngineArguments,
) -> None:
    """Chat with a model in the terminal."""
    from penstock.cli.chat import run_chat

    options.refuse_prompt_as_model(model, prompt or ())
    engine = computing.engine(model)
    given = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    # A prompt need not be quoted.
    raise typer.Exit(run_chat(engine, " ".join(prompt) if prompt else None, system, given, chat_template))


@app.command()
def explain(
    request: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="Of a request or its response; without it, recent ones are listed."),
    ] = None,
    url: Annotated[str, typer.Option(help="Of the server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None,
        typer.Option(metavar="KEY|-", help="- reads it from standard input; PENSTOCK_API_KEY does the same."),
    ] = None,
    admin_socket: Annotated[
        str | None, typer.Option(metavar="PATH", help="Ask the operator's socket instead, which knows all requests.")
    ] = None,
    slowest: Annotated[bool, typer.Option("--slowest", help="List those that took longest, not the newest.")] = False,
    limit: Annotated[int, typer.Option(help="How many are listed.", min=1, max=100)] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Why a request took as long as it did: where its time went, and what would change that."""
    from penstock.cli.explain import run_explain

    run_explain(request, url, api_key, admin_socket, slowest=slowest, limit=limit, as_json=as_json)


plan_commands.register(app)
key_command.register(app)
join.register(app)


@app.command()
def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
    supported: Annotated[bool, typer.Option(help="List the architectures that can be served instead.")] = False,
) -> None:
    """List the models that are here: bundled ones, and those in the Hugging Face cache."""
    from penstock.cli.models import run_models, run_supported

    (run_supported if supported else run_models)(as_json=as_json)


@app.command()
@with_groups
def doctor(
    model: Annotated[
        str | None, typer.Argument(help="Also say what this model would reach here at best; only headers are read.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Of a running server: find what bounds it.")] = None,
    seconds: Annotated[float | None, typer.Option(help="For how long it is looked at; 10 without.")] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An earlier report (--json): whether the bottleneck has moved.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(metavar="KEY|-", help="The server's; - reads it from standard input, and PENSTOCK_API_KEY too."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts and --compare.")] = False,
    max_num_seqs: options.MaxNumSeqs = None,
    *,
    computing: options.EngineArguments,
) -> None:
    """Say what this machine, or a running server, is limited by, and what to try."""
    from penstock.cli.doctor import ServerOptions, run_doctor

    server = ServerOptions(url=url, seconds=seconds, before=compare, api_key=api_key)
    raise typer.Exit(run_doctor(model, server, computing, max_num_seqs, as_json=as_json))


@app.command()
def metrics(
    what: Annotated[
        MetricsFile,
        typer.Argument(
            help="dashboard, gateway-dashboard: JSON for Grafana. alerts: rules for Prometheus. table: Markdown."
        ),
    ],
) -> None:
    """Print what is made of the definitions of a server's metrics."""
    from penstock.observability.alerts import alerts_yaml
    from penstock.observability.dashboard import DASHBOARD
    from penstock.observability.definitions import as_markdown
    from penstock.observability.gateway_dashboard import GATEWAY_DASHBOARD

    makers = {
        MetricsFile.DASHBOARD: DASHBOARD.text,
        MetricsFile.GATEWAY_DASHBOARD: GATEWAY_DASHBOARD.text,
        MetricsFile.ALERTS: alerts_yaml,
        MetricsFile.TABLE: as_markdown,
    }
    typer.echo(makers[what](), nl=False)


@bench.command("engine")
@with_groups
def bench_engine(
    model: options.Model = None,
    input_len: Annotated[int, typer.Option(help="Tokens of each prompt.", min=1)] = 128,
    output_len: Annotated[int, typer.Option(help="Output tokens after the first.", min=1)] = 64,
    batch_size: Annotated[str, typer.Option(help="Prompts at a time; several separated by commas.")] = "1,4,16,32",
    static: Annotated[bool, typer.Option("--static", help="Static batching, for comparison.")] = False,
    repeat: Annotated[int, typer.Option(help="Runs; the median counts.", min=1)] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    max_num_seqs: options.MaxNumSeqs = None,
    enable_prefix_caching: options.PrefixCaching = False,
    *,
    computing: options.EngineArguments,
) -> None:
    """Prefill and decode speed of the engine by itself, on random prompts."""
    from penstock.cli.bench import run_bench_engine

    engine = computing.engine(
        model, max_num_seqs=max_num_seqs, enable_prefix_caching=enable_prefix_caching, static_batching=static
    )
    run_bench_engine(engine, input_len, output_len, options.parse_batch_sizes(batch_size), repeat, json_file)


@app.command()
def evaluate(
    base: Annotated[str, typer.Argument(help="The model that others are compared with, in float32.")],
    candidates: Annotated[
        list[str],
        typer.Argument(
            help="Models to compare with it; MODEL@int8, MODEL@int4 or MODEL@int4/int8 (head) round first, "
            "MODEL@kv=int8 its cache."
        ),
    ],
    text: Annotated[
        Path | None, typer.Option(help="A text to compare them on; without it, conversations of the calibration set.")
    ] = None,
    texts: Annotated[int, typer.Option(help="Conversations, or windows of the text, at most.", min=1)] = 128,
    context: Annotated[int, typer.Option(help="Tokens of each at most.", min=2)] = 1024,
    max_kl: Annotated[float, typer.Option(help="Passes: mean KL divergence in nats at most.")] = 0.05,
    min_same_top: Annotated[float, typer.Option(help="Passes: share of equal top tokens at least.")] = 0.95,
    max_perplexity: Annotated[
        float, typer.Option(help="Passes: perplexity against the base's at most, in each third of the positions too.")
    ] = 1.02,
    answers: Annotated[
        int,
        typer.Option(help="Questions to ask of each of the bundled models' tasks: 5-7-5, JSON, sums.", min=0),
    ] = 0,
    speed: Annotated[bool, typer.Option("--speed", help="Measure prefill and decode at batch 1 and 16.")] = False,
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Draw quality against bytes, into this folder.")] = None,
) -> None:
    """What smaller weights cost a model in quality; exits with 1 where a candidate does not pass."""
    from penstock.cli.evaluate import Bounds, ComparedTexts, Results, run_evaluate
    from penstock.cli.serving_figures import Asked

    bounds, serving = Bounds(max_kl, min_same_top, max_perplexity), Asked(answers, speed)
    computing = {"dtype": dtype, "threads": threads, "speculative": "off"}
    compared, results = ComparedTexts(text, texts, context), Results(json_file, plots)
    raise typer.Exit(run_evaluate(base, candidates, compared, bounds, serving, results, computing))


@app.command()
def quantize(
    model: Annotated[
        str, typer.Argument(help="The checkpoint to make smaller: a directory, or a hub or bundled name.")
    ],
    out: Annotated[
        Path, typer.Option(help="Directory, or GGUF file, to write; a run that was interrupted goes on in its own.")
    ],
    method: Annotated[
        str,
        typer.Option(
            help="rtn rounds to the nearest; gptq and awq by calibration texts; mixed as gptq, with a width for each "
            "projection; smoothquant and fp8 have a byte for each weight."
        ),
    ] = "gptq",
    bits: Annotated[
        float | None, typer.Option(help="Of a weight: 2, 3, 4 or 8, 4 by default; with mixed the average.")
    ] = None,
    group_size: Annotated[
        int | None, typer.Option(help="Inputs that share a scale; 0: all. 128 by default.", min=0)
    ] = None,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="compressed-tensors, gptq or awq: how it is stored; Q8_0, Q4_0, Q4_K or Q6_K: a GGUF file of these.",
        ),
    ] = "compressed-tensors",
    asymmetric: Annotated[bool, typer.Option("--asymmetric", help="Give each group a zero of its own.")] = False,
    search: Annotated[
        bool, typer.Option(help="Scales of the least error, instead of those that hold all weights.")
    ] = True,
    calibration: Annotated[
        str | None,
        typer.Option(help="A text to calibrate with, or default: conversations of the calibration set, which it is."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            help="Conversations, or windows of the text, at most; 128 by default. Where experts lack rows, up to four "
            "times as many are taken.",
            min=1,
        ),
    ] = None,
    sample_len: Annotated[int | None, typer.Option(help="Tokens of each at most; 512 by default.", min=2)] = None,
    damping: Annotated[
        float | None,
        typer.Option(help="gptq, mixed: share of its mean added to the Hessian's diagonal; by default 0.01."),
    ] = None,
    act_order: Annotated[bool, typer.Option(help="gptq, mixed: begin with the inputs that matter most.")] = True,
    threads: options.Threads = None,
) -> None:
    """Write a checkpoint whose weights are rounded to few bits, which other engines read too."""
    from penstock.cli.quantize import Source, run_quantize
    from penstock.quantization.recipe import make_recipe

    recipe = make_recipe(
        method,
        format_,
        bits=bits,
        group=group_size,
        symmetric=not asymmetric,
        searched=search,
        damping=damping,
        act_order=act_order,
    )
    run_quantize(model, recipe, Source(calibration, samples, sample_len), out, threads)


@bench.command("serve")
@with_groups
def bench_serve(
    url: Annotated[str, typer.Argument(help="Of the server, any that speaks OpenAI's API.")] = "http://127.0.0.1:8000",
    *,
    load: load_options.LoadOptions,
    workload: load_options.WorkloadOptions,
    requests: load_options.RequestOptions,
    output: load_options.OutputOptions,
) -> None:
    """What clients notice of a server under load: latencies, throughput, and goodput within service levels."""
    from penstock.cli.bench_serve import run_bench_serve

    raise typer.Exit(run_bench_serve(url, requests, workload, load, output))


@bench.command("speculation")
@with_groups
def bench_speculation(
    model: options.Model = None,
    proposer: Annotated[str, typer.Option(help="Sources of drafts, separated by commas.")] = "auto,ngram",
    depth: Annotated[
        str, typer.Option(help="Tokens drafted at a time, or auto; several. 4+2: and 2 in other branches.")
    ] = "auto,2,4",
    temperature: Annotated[str, typer.Option(help="Of sampling; several separated by commas.")] = "0,0.8",
    batch_size: Annotated[str, typer.Option(help="Prompts at a time; several separated by commas.")] = "1,4,16",
    workload: Annotated[str, typer.Option(help="What is asked: chat, quote, json or random.")] = "chat",
    output_len: Annotated[int, typer.Option(help="Output tokens of each prompt.", min=2)] = 64,
    rounds: Annotated[int, typer.Option(help="Runs; the median counts.", min=1)] = 5,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    plots: Annotated[
        Path | None, typer.Option(help="Draw speed-up against how often drafts are right, into this folder.")
    ] = None,
    *,
    computing: options.EngineArguments,
) -> None:
    """What drafts gain, and how often they are right, with the theory beside it."""
    from penstock.cli.bench_speculation import run_bench_speculation

    run_bench_speculation(
        computing.engine(model, enable_prefix_caching=False),
        proposer.split(","),
        options.parse_depths(depth),
        options.parse_temperatures(temperature),
        options.parse_batch_sizes(batch_size),
        workload,
        output_len,
        rounds,
        json_file,
        plots,
    )


@bench.command("kernels")
def bench_kernels(
    operation: Annotated[
        list[str] | None, typer.Option(help="Measure this one only, such as attention; may be given several times.")
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="Formats of weights, separated by commas.")] = (
        "int4,int8,bfloat16,float32"
    ),
    rows: Annotated[str, typer.Option(help="Tokens at a time, for all but attention.")] = "1,4,16,32,512",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    threads: options.Threads = None,
    device: options.Device = "cpu",
) -> None:
    """Speed of each operation, beside what the processor's memory and arithmetic allow, or a GPU's."""
    from penstock.cli.bench import run_bench_kernels

    run_bench_kernels(operation, format_, options.parse_batch_sizes(rows, "--rows"), threads, json_file, device)


def main() -> None:
    """Run a command; an error on purpose is one sentence and its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A name of a file may be no text in the terminal's encoding, or in any.
        sys.stdout.reconfigure(errors="backslashreplace")
    # Before a command imports torch.
    limit_spinning()
    # At its end Python looks for garbage in all that was imported, for a fourth of the time of a short command.
    atexit.register(gc.freeze)
    _exit_with_cause(app)


def _exit_with_cause(command: Callable[[], None]) -> None:
    try:
        command()
    except PenstockError as error:
        typer.echo(f"penstock: {error.message}", err=True)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
