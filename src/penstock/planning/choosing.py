"""How many processes compute a model where that is left open (`auto`): those that are expected to yield the most."""

from collections.abc import Iterator

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.planning.calibration import Basis
from penstock.planning.estimates import Workload, estimate
from penstock.planning.latency import Deployment
from penstock.planning.rank_costs import RankCosts
from penstock.planning.ranks import in_ranks, with_ranks

# Requests that ways are compared by, and how many of them at a time.
_PROMPT, _OUTPUT, _AT_A_TIME = 1024, 256, (1, 8)
_SIZES = (1, 2, 4, 8, 16, 32, 64)


class Open(msgspec.Struct, frozen=True):
    """What was asked for; None: it is left open.

    Attributes:
        split, experts, stages, stripes: as in `configuration.ranks.Layout`.
        machines: on which the stages are.
    """

    split: int | None
    experts: int | None
    stages: int | None
    stripes: int | None
    machines: int = 1


class Way(msgspec.Struct, frozen=True):
    """A number of processes of each kind, and the tokens a second that are expected with one and with more requests.

    `said` is what that stands on beside one process.
    """

    split: int
    stages: int
    stripes: int
    rates: tuple[float, ...] = ()
    said: str = ""

    @property
    def processes(self) -> int:
        """Their number, over all kinds."""
        return self.split * self.stages * self.stripes

    def __str__(self) -> str:
        named = (("TP", self.split), ("PP", self.stages), ("CP", self.stripes))
        return " ".join(f"{name} {size}" for name, size in named if size > 1) or "one process"


class Choice(msgspec.Struct, frozen=True):
    """What is chosen, and by what it was compared."""

    split: int
    experts: int
    stages: int
    stripes: int
    why: str


def choose(whole: Deployment, basis: Basis, asked: Open, threads: int, measured: tuple[RankCosts, ...] = ()) -> Choice:
    """The sizes that were left open, of a model that one process computes as `whole` on a machine.

    Of several machines each has a stage, and the ways to share out one of them are compared. Raises ConfigurationError
    where nothing can be as it was asked for.
    """
    if asked.machines > 1 and (asked.stripes or 1) > 1:
        raise ConfigurationError(
            f"--context-parallel-size {asked.stripes} is of one machine, and there are {asked.machines}; leave it or "
            "--machines out."
        )
    alone = asked if asked.machines == 1 else msgspec.structs.replace(asked, stages=1, stripes=1)
    ways = [_rated(way, whole, basis, measured) for way in _ways(whole, alone, threads)]
    best = max(ways, key=lambda way: (_product(way.rates), -way.processes))
    stages, why = best.stages, _why(best, ways, basis, threads)
    if asked.machines > 1:
        stages = asked.stages or asked.machines
        why = f"each of {asked.machines} machines has a stage, since nothing else goes over several; on each, {why}"
    return Choice(best.split, asked.experts or 1, stages, best.stripes, why)


def _ways(whole: Deployment, asked: Open, threads: int) -> Iterator[Way]:
    """The ways that have a thread for each process, or that were asked for."""
    sizes = [size for size in _SIZES if size <= threads]
    # Alone, the number of groups of experts says how many processes there are.
    experts = asked.experts or 1
    shared = [size * experts for size in sizes if size * experts <= threads]
    splits = [asked.split] if asked.split else shared
    stages = [asked.stages] if asked.stages else [size for size in sizes if size <= whole.shape.num_layers]
    stripes = [asked.stripes] if asked.stripes else sizes
    found = [Way(*sizes) for split in splits for each in stages for size in stripes for sizes in ((split, each, size),)]
    possible = [way for way in found if way.stripes == 1 or way.split * way.stages == 1]
    least = min((way.processes for way in possible), default=0)
    if not least:
        raise ConfigurationError(
            f"No number of processes up to the {threads} threads is possible beside what was asked for; say all of "
            "--tensor-parallel-size, --pipeline-parallel-size, --expert-parallel-size and --context-parallel-size."
        )
    return (way for way in possible if way.processes <= max(threads, least))


def _rated(way: Way, whole: Deployment, basis: Basis, measured: tuple[RankCosts, ...]) -> Way:
    """A way with what is expected of it; nothing where the model cannot be shared out so."""
    deployment, efficiency, said = whole, basis.efficiency, ""
    if way.processes > 1:
        try:
            deployment, costs = in_ranks(
                whole, split=way.split, stages=way.stages, stripes=way.stripes, measured=measured
            )
        except ConfigurationError:
            # It has too few heads. Where that was asked for, the start says so.
            return msgspec.structs.replace(way, rates=(0.0,) * len(_AT_A_TIME))
        efficiency, said = with_ranks(efficiency, costs), costs.said
    told = (estimate(deployment, efficiency, Workload(_PROMPT, _OUTPUT, float(count))) for count in _AT_A_TIME)
    return msgspec.structs.replace(way, rates=tuple(each.output_tokens_per_second for each in told), said=said)


def _product(rates: tuple[float, ...]) -> float:
    product = 1.0
    for rate in rates:
        product *= rate
    return product


def _why(best: Way, ways: list[Way], basis: Basis, threads: int) -> str:
    """What was compared: the best of each kind."""
    if len(ways) == 1:
        return f"there is no other way with {threads} threads and what was asked for"
    kinds: dict[tuple[bool, bool, bool], Way] = {}
    for way in ways:
        kind = way.split > 1, way.stages > 1, way.stripes > 1
        if kind not in kinds or _product(way.rates) > _product(kinds[kind].rates):
            kinds[kind] = way
    ordered = sorted(kinds.values(), key=lambda way: -_product(way.rates))
    told = ", ".join(f"{way} {' and '.join(f'{rate:,.3g}' for rate in way.rates)}" for way in ordered)
    beside = " and ".join(dict.fromkeys(way.said for way in ordered if way.said))
    return (
        f"{best} yields the most of requests with {_PROMPT:,} tokens in and {_OUTPUT} out, one and "
        f"{_AT_A_TIME[1]} at a time, in tokens/s: {told}; these are the plan's, on {basis.said}; of several processes, "
        f"on {beside}"
    )
