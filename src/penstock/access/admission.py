"""Which requests are taken on: rules over those that were handed to the engine and have had no output yet.

Pure: the caller says what time it is, what the engine's newest snapshot is, and where chance comes from. What waits is
counted here and not read from snapshots, which lag behind: a hundred requests can come between two of them.

A prompt *waits* from when it is admitted to its first output. Requests of each priority are counted apart, since no
prompt waits for requests that run after it. While nothing waits, nothing is refused.
"""

import math
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from penstock.core.errors import MemoryPressure, Overloaded, QueueFull, SloUnreachable
from penstock.core.events import LoadSnapshot

# From this share of the queue's bounds on, requests are refused by chance, so that clients are told bit by bit.
SHEDDING_FROM = 0.8
# A fuller pool than this is under pressure: preemption, which makes up for wrong estimates, costs computation.
PROMISED_SHARE = 0.95
# The share of the queue's bounds that may wait for memory: without a queue, blocks that become free would be idle.
QUEUED_FOR_MEMORY = 0.1
SHORTEST_RETRY, LONGEST_RETRY = 1, 60
# Seconds with a backlog after which what was measured counts a third.
_MEMORY_SECONDS = 10.0
# The length of outputs that is assumed and its weight in observations, the factor by which an observation fades with
# each later one, and the number of tenants whose lengths are kept.
_PRIOR_TOKENS, _PRIOR_WEIGHT = 256.0, 4.0
_FADING = 0.98
_MOST_TENANTS = 1024
# Tokens of a sample after which the blocks that it still needs are counted again.
_TOKENS_PER_LOOK = 16


class QueueBounds(msgspec.Struct, frozen=True, kw_only=True):
    """How much may wait.

    Attributes:
        requests: prompts.
        tokens: tokens of prompts.
        ttft: seconds to a first token that are promised; None promises nothing.
    """

    requests: int
    tokens: int
    ttft: float | None = None


class AdmissionRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a request asks for.

    Attributes:
        prompts: tokens of each.
        samples: outputs for each prompt.
        beams: sequences that are computed for each of them, where that is more than itself.
        max_tokens: most tokens of each prompt's outputs; None where only the context bounds them.
        priority, tenant: whose it is; lower priorities run first.
    """

    prompts: tuple[int, ...]
    samples: int
    max_tokens: tuple[int | None, ...]
    priority: int = 0
    tenant: str = ""
    beams: int = 1


class OutputLengths:
    """How long outputs will be: the mean of those that have ended, by tenant, the recent ones counting more."""

    def __init__(self) -> None:
        self._all = (0.0, 0.0)
        self._tenants: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def observe(self, tenant: str, tokens: int) -> None:
        """An output has ended with `tokens` tokens."""
        self._all = _faded(self._all, tokens)
        self._tenants[tenant] = _faded(self._tenants.pop(tenant, (0.0, 0.0)), tokens)
        if len(self._tenants) > _MOST_TENANTS:
            self._tenants.popitem(last=False)

    def expect(self, tenant: str, max_tokens: int | None) -> int:
        """Tokens of a tenant's next output, at most `max_tokens`."""
        everybody = _mean(self._all, _PRIOR_TOKENS)
        expected = math.ceil(_mean(self._tenants.get(tenant, (0.0, 0.0)), everybody))
        return expected if max_tokens is None else min(expected, max_tokens)


def _faded(sums: tuple[float, float], tokens: int) -> tuple[float, float]:
    total, weight = sums
    return total * _FADING + tokens, weight * _FADING + 1.0


def _mean(sums: tuple[float, float], prior: float) -> float:
    total, weight = sums
    return (total + _PRIOR_WEIGHT * prior) / (weight + _PRIOR_WEIGHT)


class DrainRate:
    """How fast the queue empties, measured while there is a backlog: at other times nothing is learnt of the limits."""

    def __init__(self) -> None:
        self._seconds = self._tokens = self._prompts = 0.0
        self._before: tuple[float, int] | None = None

    def look(self, load: LoadSnapshot, now: float, *, backlog: bool) -> None:
        """Take in what was computed since the last look, if there was a backlog."""
        served = load.prefill_tokens + load.prefix_hit_tokens
        if self._before is not None and backlog:
            elapsed = max(0.0, now - self._before[0])
            fading = math.exp(-elapsed / _MEMORY_SECONDS)
            self._seconds = self._seconds * fading + elapsed
            self._tokens = self._tokens * fading + max(0, served - self._before[1])
            self._prompts *= fading
        self._before = now, served

    def begun(self) -> None:
        """A prompt waits no more."""
        self._prompts += 1

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of prompts; None while too little is known."""
        return self._tokens / self._seconds if self._seconds >= 0.2 and self._tokens else None

    @property
    def prompts_per_second(self) -> float | None:
        """None while too little is known."""
        return self._prompts / self._seconds if self._seconds >= 0.2 and self._prompts else None


class Ticket:
    """An admitted request, as admission keeps it until it ends.

    Attributes:
        request: what it asks for.
        expected: tokens that each sample is expected to have, by prompt.
        waiting: prompts without any output.
        produced: tokens of each sample so far; those of prompt p begin at p · samples. None where it has ended.
        owed: KV blocks that each sample is expected to need besides those that it has.
        promised: these together, and those of prompts that wait.
        left: it has ended.
    """

    __slots__ = ("request", "expected", "left", "owed", "produced", "promised", "waiting")

    def __init__(self, request: AdmissionRequest, expected: list[int]) -> None:
        self.request = request
        self.expected = expected
        self.waiting = set(range(len(request.prompts)))
        self.produced: list[int | None] = [0] * (len(request.prompts) * request.samples)
        self.owed = [0] * len(self.produced)
        self.promised = 0
        self.left = False


class AdmissionControl:
    """Admits requests, or refuses them.

    Args:
        bounds: how much may wait.
        blocks_for: the number of KV blocks that a sequence holds, by its number of tokens.
        chance: a number from 0 up to 1, another one at each call.
    """

    def __init__(self, bounds: QueueBounds, blocks_for: Callable[[int], int], chance: Callable[[], float]) -> None:
        self.bounds = bounds
        self._blocks_for = blocks_for
        self._chance = chance
        self._lengths = OutputLengths()
        self._drain = DrainRate()
        # By priority: prompts that wait, and their tokens.
        self._waiting: dict[int, tuple[int, int]] = {}
        # Blocks that those who were admitted are expected to need besides those that they have.
        self._promised = 0

    def waiting(self, priority: int | None = None) -> tuple[int, int]:
        """Prompts that wait and their tokens; only those that one of this priority would wait for."""
        counts = [count for other, count in self._waiting.items() if priority is None or other <= priority]
        return sum(prompts for prompts, _ in counts), sum(tokens for _, tokens in counts)

    def check(self, load: LoadSnapshot, now: float) -> None:
        """Raise Overloaded where no request would be taken on, whatever it is; to be called before one is read."""
        self._look(load, now)
        self._check_bounds(1, 0)

    def shed(self, priority: int, load: LoadSnapshot, now: float) -> None:
        """Raise Overloaded where chance, or the wait, is against any request of this priority; once for each."""
        self._look(load, now)
        share = self._share(*self.waiting(priority))
        if share > SHEDDING_FROM and self._chance() < (share - SHEDDING_FROM) / (1.0 - SHEDDING_FROM):
            raise self._refusal(QueueFull, "The queue is almost full")
        self._check_ttft(priority, 0)

    def admit(self, request: AdmissionRequest, load: LoadSnapshot, now: float) -> Ticket:
        """Take a request on, or raise Overloaded."""
        ticket = self.consider(request, load, now)
        self._promised += ticket.promised
        self._count(request.priority, len(request.prompts), sum(request.prompts))
        return ticket

    def consider(self, request: AdmissionRequest, load: LoadSnapshot, now: float) -> Ticket:
        """What a request would have if it were taken on now. Raises Overloaded where it would not be."""
        self._look(load, now)
        tokens = sum(request.prompts)
        self._check_bounds(len(request.prompts), tokens)
        self._check_ttft(request.priority, tokens)
        expected = [self._lengths.expect(request.tenant, most) for most in request.max_tokens]
        ticket = Ticket(request, expected)
        for prompt, length in enumerate(request.prompts):
            own = self._blocks_for(length)
            owed = (self._blocks_for(length + expected[prompt]) - own) * request.beams
            ticket.owed[prompt * request.samples : (prompt + 1) * request.samples] = [owed] * request.samples
            ticket.promised += own + request.samples * owed
        self._check_memory(ticket, load)
        return ticket

    def gained(self, ticket: Ticket, sample: int, tokens: int, load: LoadSnapshot, now: float, *, ended: bool) -> None:
        """A sample has more tokens, or has ended; to be called until the request leaves."""
        prompt = sample // ticket.request.samples
        if prompt in ticket.waiting:
            self._look(load, now)
            ticket.waiting.remove(prompt)
            self._count(ticket.request.priority, -1, -ticket.request.prompts[prompt])
            self._drain.begun()
            self._settle(ticket, self._blocks_for(ticket.request.prompts[prompt]))
        before = ticket.produced[sample]
        if before is None:
            return
        ticket.produced[sample] = None if ended else before + tokens
        if ended or (before + tokens) // _TOKENS_PER_LOOK != before // _TOKENS_PER_LOOK:
            self._owe(ticket, sample, prompt)
        if ended and ticket.request.max_tokens[prompt] != 0:
            self._lengths.observe(ticket.request.tenant, before + tokens)

    def leave(self, ticket: Ticket, load: LoadSnapshot, now: float) -> None:
        """A request has ended, however it did; only the first call counts."""
        if ticket.left:
            return
        self._look(load, now)
        ticket.left = True
        self._settle(ticket, ticket.promised)
        prompts = ticket.request.prompts
        self._count(ticket.request.priority, -len(ticket.waiting), -sum(prompts[index] for index in ticket.waiting))

    def _look(self, load: LoadSnapshot, now: float) -> None:
        # What the engine could not begin with at once is a backlog.
        self._drain.look(load, now, backlog=bool(self._waiting) and load.waiting > 0)

    def _count(self, priority: int, prompts: int, tokens: int) -> None:
        before = self._waiting.pop(priority, (0, 0))
        after = before[0] + prompts, before[1] + tokens
        if after[0]:
            self._waiting[priority] = after

    def _share(self, prompts: int, tokens: int) -> float:
        return max(prompts / self.bounds.requests, tokens / self.bounds.tokens)

    def _check_bounds(self, prompts: int, tokens: int) -> None:
        """One that is larger than all bounds is taken on where nothing waits: it would never be otherwise."""
        waiting, waiting_tokens = self.waiting()
        if not waiting:
            return
        if waiting + prompts > self.bounds.requests:
            raise self._refusal(
                QueueFull, f"{waiting} prompts wait, of {self.bounds.requests} that are queued (--max-queued-requests)"
            )
        if waiting_tokens + tokens > self.bounds.tokens:
            raise self._refusal(
                QueueFull,
                f"Prompts of {waiting_tokens} tokens wait, of {self.bounds.tokens} that are queued "
                "(--max-queued-tokens)",
            )

    def _check_ttft(self, priority: int, tokens: int) -> None:
        speed = self._drain.tokens_per_second
        waiting, before = self.waiting(priority)
        if self.bounds.ttft is None or speed is None or not waiting:
            return
        expected = (before + tokens) / speed
        if expected > self.bounds.ttft:
            raise self._refusal(
                SloUnreachable,
                f"The first token would come after {expected:.1f} s, later than the {self.bounds.ttft:g} s that this "
                "server allows (--max-ttft)",
                expected - self.bounds.ttft,
            )

    def _check_memory(self, ticket: Ticket, load: LoadSnapshot) -> None:
        if not load.blocks_total or self._share(*self.waiting()) <= QUEUED_FOR_MEMORY:
            return
        if load.blocks_used + self._promised + ticket.promised > PROMISED_SHARE * load.blocks_total:
            raise self._refusal(
                MemoryPressure,
                f"Of the KV pool's {load.blocks_total} blocks {load.blocks_used} are used, and requests that were "
                "taken on are expected to need the others",
            )

    def _owe(self, ticket: Ticket, sample: int, prompt: int) -> None:
        """A sample needs fewer blocks than it did, since it has more, or has ended."""
        produced, length, owed = ticket.produced[sample], ticket.request.prompts[prompt], 0
        if produced is not None:
            owed = self._blocks_for(length + ticket.expected[prompt]) - self._blocks_for(length + produced)
            owed *= ticket.request.beams
        self._settle(ticket, ticket.owed[sample] - max(0, owed))
        ticket.owed[sample] = max(0, owed)

    def _settle(self, ticket: Ticket, blocks: int) -> None:
        """Take `blocks` blocks off the ticket's promised blocks and off the sum of all."""
        ticket.promised -= blocks
        self._promised -= blocks

    def _refusal(self, kind: type[Overloaded], cause: str, seconds: float | None = None) -> Overloaded:
        """The error, with when to come back: when what waits will have begun, and not all at that moment."""
        if seconds is None:
            speed = self._drain.prompts_per_second
            seconds = self.waiting()[0] / speed if speed else 0.0
        after = spread_retry(seconds, self._chance())
        return kind(f"{cause}; try again in {after} s.", retry_after=after)


def spread_retry(seconds: float, chance: float) -> int:
    """When to come back, in whole seconds, where there is room after these: up to half earlier and half later."""
    # Two thirds of the longest, so that that is true of it too.
    spread = min(max(seconds, SHORTEST_RETRY), LONGEST_RETRY / 1.5) * (0.5 + chance)
    return min(max(math.ceil(spread), SHORTEST_RETRY), LONGEST_RETRY)
