"""`penstock simulate --fluid`: a fleet as a flow of requests, however large it is."""

import random
from pathlib import Path

import msgspec
from rich.console import Console

from penstock.bench.load.arrivals import Open, check_arrivals
from penstock.bench.load.lengths import Lengths, parse_lengths
from penstock.cli.deployment import deployed
from penstock.cli.files import check_output, write_json
from penstock.cli.plan_options import DeploymentOptions, FleetOptions, TrafficOptions
from penstock.cli.plan_report import counted
from penstock.core.errors import ConfigurationError
from penstock.planning.bounding import bounded, policy_for
from penstock.planning.memory import memory_of
from penstock.simulation.fluid import Flow, Moment

# Times an output takes, after which a fleet that began empty has filled; and moments that are noted meanwhile.
_OUTPUTS, _MOMENTS = 20, 100
# Lengths that are drawn for a mean.
_DRAWN = 10_000


class FluidFleet(msgspec.Struct, frozen=True):
    """What `penstock simulate --fluid --json` prints.

    Attributes:
        devices: of all replicas.
        end: the fleet once it has filled.
        grows: whether requests wait for a place, and more with time.
        moments: how it filled.
    """

    machine: str
    basis: str
    replicas: int
    devices: int
    places: int
    end: Moment
    grows: bool
    moments: list[Moment]


def run_fluid(
    model: str | None,
    options: DeploymentOptions,
    fleet: FleetOptions,
    traffic: TrafficOptions,
    json_file: Path | None,
) -> None:
    """Let requests flow through a fleet at a rate, and print what becomes of it."""
    check_output(json_file)
    _check(options, fleet, traffic)
    assert traffic.rate is not None
    check_arrivals(Open(traffic.rate))
    prompt = _mean(parse_lengths(traffic.input_len, "--input-len"))
    output = _mean(parse_lengths(traffic.output_len, "--output-len"))
    deployment, machine, replicas, basis = deployed(model, options, fleet.roles)
    deployment = bounded(deployment, policy_for(options.kv_policy, deployment.shape))
    replicas = fleet.replicas or replicas
    machine = msgspec.structs.replace(machine, count=deployment.split)
    memory = memory_of(deployment, round(prompt + output), fleet.max_num_batched_tokens)
    if not memory.fits:
        raise ConfigurationError(f"A request does not fit into the cache of {machine}; `penstock plan` says why.")
    places = min(memory.max_concurrency, fleet.max_num_seqs)
    flow = Flow(
        deployment=deployment,
        efficiency=basis.efficiency,
        replicas=replicas,
        places=places,
        prompt=prompt,
        output=output,
        budget=max(fleet.max_num_batched_tokens, fleet.max_num_seqs),
    )
    rate = traffic.rate
    _, tpot = flow.figures(float(places), min(rate / replicas, flow.most(float(places))))
    moments = flow.play(lambda _at: rate, _OUTPUTS * max(1.0, output) * min(tpot, 10.0), _MOMENTS)
    end = moments[-1]
    found = FluidFleet(
        machine=str(machine),
        basis=basis.said,
        replicas=replicas,
        devices=replicas * machine.count,
        places=places,
        end=end,
        grows=end.waiting > 1.01 * moments[len(moments) // 2].waiting and end.waiting >= 1,
        moments=moments,
    )
    if json_file is None:
        _print(found)
    else:
        write_json(found, json_file)


def _check(options: DeploymentOptions, fleet: FleetOptions, traffic: TrafficOptions) -> None:
    """Raise ConfigurationError where an option has no meaning for a flow."""
    usual, alike = FleetOptions(), TrafficOptions()
    of_no_use = {
        "--trace": traffic.trace is not None,
        "--concurrency": traffic.concurrency is not None,
        "--length-scale": traffic.length_scale != alike.length_scale,
        "--prefix-len": traffic.prefix_len != alike.prefix_len,
        "--prefixes": traffic.prefixes != alike.prefixes,
        "--requests": traffic.requests != alike.requests,
        "--time-scale": traffic.time_scale != alike.time_scale,
        "--price": fleet.price is not None,
        "--turns": traffic.turns != alike.turns,
        "--think-time": traffic.think_time != alike.think_time,
        "--seed": traffic.seed != alike.seed,
        "--router": fleet.router != usual.router,
        "--target-itl": fleet.target_itl is not None,
        "--long-prefill-token-threshold": fleet.long_prefill_token_threshold is not None,
        "--kv-cache-memory": fleet.kv_cache_memory is not None,
        "--prefill-replicas": fleet.roles.prefill_replicas is not None,
        "--decode-replicas": fleet.roles.decode_replicas is not None,
        "--kv-transfer": fleet.roles.kv_transfer is not None,
        "--kv-disk": options.kv_disk is not None,
        "--no-enable-prefix-caching": not fleet.enable_prefix_caching,
        "--pipeline-parallel-size": options.pipeline_parallel_size > 1,
        "--data-parallel-size": options.data_parallel_size > 1,
        "--context-parallel-size": options.context_parallel_size > 1,
    }
    wrong = [name for name, given in of_no_use.items() if given]
    if wrong:
        raise ConfigurationError(
            f"{wrong[0]} has no meaning with --fluid, where all replicas and requests are alike and costs are not told."
        )
    if traffic.rate is None:
        raise ConfigurationError("--fluid needs --rate: how many requests come a second, to all replicas.")


def _mean(lengths: Lengths) -> float:
    source = random.Random(0)
    return sum(lengths.draw(source) for _ in range(_DRAWN)) / _DRAWN


def _print(found: FluidFleet) -> None:
    console, end = Console(highlight=False, markup=False), found.end
    console.print(
        f"{counted(found.replicas, 'replica')} of {found.machine}, {counted(found.devices, 'device')}, as a flow; "
        f"steps stand on {found.basis}."
    )
    console.print(
        f"{end.rate:,.4g} requests a second: {end.running:,.0f} at a time, {end.running / found.replicas:,.1f} on a "
        f"replica that has {found.places:,} places."
    )
    console.print(
        f"TTFT {end.ttft * 1e3:,.0f} ms, TPOT {end.tpot * 1e3:,.1f} ms, {end.output_tokens_per_second:,.0f} output "
        "tokens a second, in the mean."
    )
    if found.grows:
        console.print(f"The queue grows without end: {end.waiting:,.0f} wait after {end.at:,.0f} s.")
