"""The requests of a simulation: when each comes, how long it is, and what its prompt begins with."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, repeat
from math import isfinite
from typing import NamedTuple

from penstock.bench.load.arrivals import Arrivals, Closed, Open, Replay, arrival_times, check_arrivals
from penstock.bench.load.lengths import parse_lengths
from penstock.bench.load.traces import BLOCK_TOKENS, check_length_scale, read_trace, scaled
from penstock.cli.plan_options import TrafficOptions
from penstock.core.errors import ConfigurationError
from penstock.core.kv_policy import KVPolicy
from penstock.core.request import Request
from penstock.core.sampling import SamplingParams
from penstock.simulation.loop import Arrival
from penstock.simulation.sources import ClosedLoop, Conversations, Given, Source, Turn

# Ids that made-up tokens have; nothing reads what they say.
_TOKENS = 2**30


class _Coming(NamedTuple):
    """A request.

    Attributes:
        at: seconds from the beginning.
        prompt, output: tokens.
        shared: identities of what its prompt begins with, and `size` tokens that each of them stands for.
        further: turns that follow it.
    """

    number: int
    at: float
    prompt: int
    output: int
    shared: tuple[int, ...] = ()
    size: int = BLOCK_TOKENS
    further: tuple[Turn, ...] = ()


@dataclass(frozen=True)
class Traffic:
    """How requests come, and when and how long each is.

    Attributes:
        requests: in ascending order of time; of conversations, the first turns.
        turns: of each conversation.
        think_time: seconds from an answer to the next turn.
        seed: of all random numbers.
        kv_policy: how each request bounds its context.
    """

    arrivals: Arrivals
    requests: list[_Coming]
    turns: int = 1
    think_time: float = 0.0
    seed: int = 0
    kv_policy: KVPolicy | None = None

    @property
    def longest(self) -> int:
        """Tokens of the longest request, with its output; a conversation's last turn contains all."""
        return max(each.prompt + each.output + sum(map(sum, each.further)) for each in self.requests)

    @property
    def shares(self) -> bool:
        """Whether any prompt says what it begins with, so that others may begin alike."""
        return any(each.shared or each.further for each in self.requests)

    def source(self, way: float, apart: float) -> Source:
        """The requests as a fleet takes them, each made when it is due, since there may be many.

        Args:
            way: seconds that an answer takes to the client beside its steps.
            apart: seconds by which requests of a closed loop that are sent together come one behind the other.
        """
        coming = (_arrival(each, self.kv_policy) for each in self.requests)
        first: Source
        if isinstance(self.arrivals, Closed):
            requests = (arrival.request for arrival in coming)
            first = ClosedLoop(requests, self.arrivals.concurrency, way, apart)
        else:
            first = Given(coming)
        if self.turns == 1:
            return first
        pause = way + self.think_time
        return Conversations(first, lambda number: self.requests[number].further, pause, len(self.requests), _own)


def traffic_of(options: TrafficOptions, rate: float | None, time_scale: float) -> Traffic:
    """The traffic that options describe, at a rate or on a scale of time. Raises ConfigurationError."""
    if options.trace is not None:
        replay = Replay(time_scale)
        check_arrivals(replay)
        scale = options.length_scale
        lines = islice(read_trace(options.trace), options.requests)
        return Traffic(
            replay,
            [
                _Coming(
                    number,
                    line.at * time_scale,
                    scaled(line.prompt, scale),
                    scaled(line.output, scale),
                    line.hash_ids,
                    scaled(BLOCK_TOKENS, scale),
                )
                for number, line in enumerate(lines)
            ],
        )
    inputs, outputs = parse_lengths(options.input_len, "--input-len"), parse_lengths(options.output_len, "--output-len")
    source = random.Random(options.seed)
    arrivals: Arrivals
    times: Iterator[float]
    if options.concurrency is not None:
        # They come as others end.
        arrivals, times = Closed(options.concurrency), repeat(0.0)
    else:
        assert rate is not None
        arrivals = Open(rate)
        check_arrivals(arrivals)
        times = arrival_times(arrivals, options.seed)
    prefix, requests = options.prefix_len, []
    for number, at in enumerate(islice(times, options.requests)):
        own, output = inputs.draw(source), outputs.draw(source)
        shared = (source.randrange(options.prefixes),) if prefix else ()
        further = tuple([Turn(inputs.draw(source), outputs.draw(source)) for _ in range(1, options.turns)])
        requests.append(_Coming(number, at, prefix + own, output, shared, prefix, further))
    return Traffic(arrivals, requests, options.turns, options.think_time, options.seed)


def check_traffic(options: TrafficOptions) -> None:
    """Raise ConfigurationError where requests come in no way, or in two, or an option would have no effect."""
    if sum(way is not None for way in (options.rate, options.trace, options.concurrency)) != 1:
        raise ConfigurationError(
            "Say how requests come, in one way: --rate 4 for random times, --concurrency 16 for requests at a time, or "
            "--trace FILE."
        )
    alike = TrafficOptions()
    of_no_use = {
        "--time-scale": options.time_scale != alike.time_scale,
        "--length-scale": options.length_scale != alike.length_scale,
        "--prefixes without --prefix-len": options.prefixes != alike.prefixes and not options.prefix_len,
        "--think-time without --turns": options.think_time > 0 and options.turns == 1,
    }
    if options.trace is not None:
        of_no_use = {
            "--input-len": options.input_len != alike.input_len,
            "--output-len": options.output_len != alike.output_len,
            "--prefix-len": options.prefix_len != alike.prefix_len,
            "--prefixes": options.prefixes != alike.prefixes,
            "--turns": options.turns != alike.turns,
            "--think-time": options.think_time != alike.think_time,
            "--seed": options.seed != alike.seed,
        }
    wrong = [name for name, given in of_no_use.items() if given]
    if wrong:
        source = "--rate" if options.concurrency is None else "--concurrency"
        if options.trace is not None:
            source = "--trace, which has its own times and lengths"
        raise ConfigurationError(f"{wrong[0]} has no meaning with {source}.")
    check_length_scale(options.length_scale)
    check_arrivals(Replay(options.time_scale))
    if not isfinite(options.think_time):
        raise ConfigurationError(f"--think-time {options.think_time} is no number of seconds.")


def _arrival(coming: _Coming, kv_policy: KVPolicy | None) -> Arrival:
    """A request whose prompt begins like those with the same identities, and like no other's where it has none."""
    size = coming.size
    tokens = [(identity * size + place) % _TOKENS for identity in coming.shared for place in range(size)]
    if len(tokens) < coming.prompt:
        # Behind all that an identity stands for.
        tokens += _own(coming.number, coming.prompt)
    del tokens[coming.prompt :]
    return Arrival(
        coming.at,
        Request(
            request_id=coming.number,
            prompt_token_ids=tokens,
            sampling=_sampling(coming.output),
            kv_policy=kv_policy,
        ),
    )


def _own(number: int, tokens: int) -> list[int]:
    """Tokens that no other request has in the same place."""
    return [_TOKENS + number, *range(1, tokens)]


@lru_cache(maxsize=1024)
def _sampling(output: int) -> SamplingParams:
    return SamplingParams(max_tokens=output, seed=0, ignore_eos=True)
