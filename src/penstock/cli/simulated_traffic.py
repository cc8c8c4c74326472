"""The requests of a simulation: when each comes, how long it is, and what its prompt begins with."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from penstock.bench.load.arrivals import Arrivals, Open, Replay, arrival_times, check_arrivals
from penstock.bench.load.lengths import parse_lengths
from penstock.bench.load.traces import BLOCK_TOKENS, read_trace
from penstock.cli.plan_options import TrafficOptions
from penstock.core.errors import ConfigurationError
from penstock.core.request import Request
from penstock.core.sampling import SamplingParams
from penstock.simulation.loop import Arrival

# Ids that made-up tokens have; nothing reads what they say.
_TOKENS = 2**31


class _Coming(NamedTuple):
    """A request: its number, when it comes, tokens of its prompt and output, and the identities of prompt blocks."""

    number: int
    at: float
    prompt: int
    output: int
    hash_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Traffic:
    """How requests come, and when and how long each is.

    Attributes:
        requests: in ascending order of time.
    """

    arrivals: Arrivals
    requests: list[_Coming]

    @property
    def longest(self) -> int:
        """Tokens of the longest request, with its output."""
        return max(each.prompt + each.output for each in self.requests)

    @property
    def shares(self) -> bool:
        """Whether any prompt says what it begins with, so that others may begin alike."""
        return any(each.hash_ids for each in self.requests)

    def coming(self) -> Iterator[Arrival]:
        """Requests as the scheduler takes them, each made when it comes, since there may be many."""
        return map(_arrival, self.requests)


def traffic_of(options: TrafficOptions, rate: float | None, time_scale: float) -> Traffic:
    """The traffic that options describe, at a rate or on a scale of time. Raises ConfigurationError."""
    if options.trace is not None:
        replay = Replay(time_scale)
        check_arrivals(replay)
        lines = islice(read_trace(options.trace), options.requests)
        return Traffic(
            replay,
            [
                _Coming(number, line.at * time_scale, max(1, line.prompt), max(1, line.output), line.hash_ids)
                for number, line in enumerate(lines)
            ],
        )
    assert rate is not None
    arrivals = Open(rate)
    check_arrivals(arrivals)
    inputs, outputs = parse_lengths(options.input_len, "--input-len"), parse_lengths(options.output_len, "--output-len")
    source, times = random.Random(options.seed), arrival_times(arrivals, options.seed)
    return Traffic(
        arrivals,
        [
            _Coming(number, at, inputs.draw(source), outputs.draw(source))
            for number, at in enumerate(islice(times, options.requests))
        ],
    )


def check_traffic(options: TrafficOptions) -> None:
    """Raise ConfigurationError where requests come in no way, or in two, or an option would have no effect."""
    if (options.rate is None) == (options.trace is None):
        raise ConfigurationError("Say how requests come: --rate 4 for random times, or --trace FILE.")
    alike = TrafficOptions()
    of_no_use = {"--time-scale": options.time_scale != alike.time_scale}
    if options.trace is not None:
        of_no_use = {
            "--input-len": options.input_len != alike.input_len,
            "--output-len": options.output_len != alike.output_len,
            "--seed": options.seed != alike.seed,
        }
    wrong = [name for name, given in of_no_use.items() if given]
    if wrong:
        source = "--rate" if options.trace is None else "--trace, which has its own times and lengths"
        raise ConfigurationError(f"{wrong[0]} has no meaning with {source}.")


def _arrival(coming: _Coming) -> Arrival:
    """A request whose prompt begins like those with the same identities, and like no other's where it has none."""
    tokens = [
        (identity * BLOCK_TOKENS + place) % _TOKENS for identity in coming.hash_ids for place in range(BLOCK_TOKENS)
    ]
    if len(tokens) < coming.prompt:
        tokens += [coming.number, *range(1, coming.prompt)]
    del tokens[coming.prompt :]
    sampling = SamplingParams(max_tokens=coming.output, seed=0, ignore_eos=True)
    return Arrival(coming.at, Request(request_id=coming.number, prompt_token_ids=tokens, sampling=sampling))
