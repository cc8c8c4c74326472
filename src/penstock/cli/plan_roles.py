"""Roles in plans: the requests of a plan, played on replicas that compute prompts or decode, and on as many alike."""

import msgspec
from rich.console import Console
from rich.table import Column, Table

from penstock.bench.load.metrics import Summary
from penstock.cli.plan_options import FleetOptions, RoleOptions, TrafficOptions
from penstock.cli.plan_prices import Prices
from penstock.cli.simulate import SimulatedFleet, play
from penstock.cli.simulated_roles import parse_roles
from penstock.cli.simulated_traffic import traffic_of
from penstock.core.errors import ConfigurationError
from penstock.planning.asked import Asked
from penstock.planning.calibration import Basis
from penstock.planning.latency import prefill_step
from penstock.planning.roles import RoleSide, RolesTold, advice_of, helps

# Enough for a p99 of gaps, and few enough for an answer in seconds.
_REQUESTS = 100


def roles_told(asked: Asked, basis: Basis, options: RoleOptions) -> RolesTold | None:
    """What roles change for the requests of a plan; None: there are none. Raises ConfigurationError."""
    roles = parse_roles(options, asked.deployment, basis.efficiency)
    if roles is None:
        return None
    if asked.rate is None:
        raise ConfigurationError(
            "--prefill-replicas is compared at a load: say how many requests come a second to all replicas, such as "
            "--rate 2."
        )
    deployment, workload = asked.deployment, asked.workload
    machine = msgspec.structs.replace(asked.machine, count=deployment.devices)
    fleet = SimulatedFleet(
        deployment, machine, basis, FleetOptions(replicas=roles.prefills + roles.decodes), None, Prices(), None, roles
    )
    cached = round(workload.cached_tokens)
    traffic = traffic_of(
        TrafficOptions(
            rate=asked.rate,
            requests=_REQUESTS,
            input_len=str(max(1, round(workload.input_tokens) - cached)),
            output_len=str(max(1, round(workload.output_tokens))),
            prefix_len=cached,
        ),
        asked.rate,
        1.0,
    )
    apart, alike = play(fleet, traffic)[0], play(fleet._replace(roles=None), traffic)[0]
    assert apart.roles is not None, "they were asked for"
    sides = _side(apart.summary), _side(alike.summary)
    tokens = workload.computed_tokens
    computing = 1e6 * prefill_step(deployment, basis.efficiency, tokens, workload.cached_tokens).seconds / tokens
    moving = 1e6 * deployment.cache_bytes(tokens) * deployment.devices / roles.transfer / tokens
    streams = (apart.summary.in_flight or 0.0) / roles.decodes
    return RolesTold(
        prefill_replicas=roles.prefills,
        decode_replicas=roles.decodes,
        transfer=roles.transfer,
        requests=_REQUESTS,
        rate=asked.rate,
        handed_over=apart.roles.handed_over,
        streams=streams,
        computing_us=computing,
        moving_us=moving,
        apart=sides[0],
        alike=sides[1],
        helps=helps(*sides),
        advice=advice_of(*sides, apart.roles.handed_over / _REQUESTS, streams, computing, moving),
    )


def _side(summary: Summary) -> RoleSide:
    assert summary.ttft is not None, "requests were served"
    gaps = summary.itl
    return RoleSide(
        ttft_p50_ms=summary.ttft.median * 1e3,
        ttft_p99_ms=summary.ttft.p99 * 1e3,
        itl_p50_ms=0.0 if gaps is None else gaps.median * 1e3,
        itl_p99_ms=0.0 if gaps is None else gaps.p99 * 1e3,
        output_tokens_per_second=summary.output_token_rate or 0.0,
    )


def print_roles(console: Console, told: RolesTold) -> None:
    """Print both fleets, and what to make of it."""
    console.print(
        f"{told.requests:,} requests at {told.rate:g} a second, simulated, with blocks at "
        f"{told.transfer / 1e9:,.3g} GB/s:"
    )
    names = ("TTFT p50, ms", "TTFT p99, ms", "ITL p50, ms", "ITL p99, ms", "tokens/s")
    table = Table("replicas", *(Column(name, justify="right") for name in names), box=None)
    count = told.prefill_replicas + told.decode_replicas
    rows = (
        (f"{told.prefill_replicas} for prompts, {told.decode_replicas} to decode", told.apart),
        (f"{count} for both", told.alike),
    )
    for name, side in rows:
        first, last = (f"{value:,.0f}" for value in (side.ttft_p50_ms, side.ttft_p99_ms))
        gaps = (f"{value:,.1f}" for value in (side.itl_p50_ms, side.itl_p99_ms))
        table.add_row(name, first, last, *gaps, f"{side.output_tokens_per_second:,.0f}")
    console.print(table)
    console.print(told.advice)
    console.print()
