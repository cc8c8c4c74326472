"""What was seen of a running server between two looks at it, and the shares that follow. Pure."""

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.core.facts import WAITS, StepTotals, Wait
from penstock.observability.stats import Latencies, Now, ProcessFigures, Second, Settings, SloFigures, Stats


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """A window of a server's life.

    Attributes:
        model, version: which model, and which Penstock.
        seconds: how long the window was.
        ready, why_not: whether requests could be served at its end, and why not.
        restarts: of the engine, within it.
        settings: what the server was started with.
        first, last: its state at both ends.
        requests, refused: that ended, by outcome, and by why they were refused.
        prompt_tokens, output_tokens, recomputed_tokens, queried_tokens, hit_tokens: as `Period` has them.
        steps: sums over the engine's steps.
        latency, slo, cost_per_million_tokens: of the server's last minute, since quantiles have no difference.
        timeline: its seconds that are over.
        api_cpu: processors that the API process used; None where that cannot be told.
    """

    model: str | None = None
    version: str = ""
    seconds: float
    ready: bool = True
    why_not: str | None = None
    restarts: int = 0
    settings: Settings
    first: Now
    last: Now
    requests: dict[str, int]
    refused: dict[str, int]
    prompt_tokens: int = 0
    output_tokens: int = 0
    recomputed_tokens: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    steps: StepTotals
    latency: Latencies
    slo: SloFigures | None = None
    cost_per_million_tokens: float | None = None
    timeline: tuple[Second, ...] = ()
    api_cpu: float | None = None

    @property
    def obstacle(self) -> str:
        """Why the engine is not ready, to stand at the end of a sentence."""
        return (self.why_not or "it does not say why").rstrip(".")

    @property
    def busy(self) -> float:
        """Share of the window in which the engine was in a step."""
        return min(1.0, self.steps.seconds / self.seconds)

    @property
    def batch(self) -> float:
        """Sequences in a step, in the mean."""
        return _share(self.steps.rows, self.steps.steps)

    @property
    def budget(self) -> float:
        """Share of the steps' token budgets that was used."""
        return _share(self.steps.tokens, self.steps.budget)

    @property
    def kv(self) -> float:
        """Largest share of the KV pool's blocks that sequences held."""
        used = max(self.first.kv.used, self.last.kv.used, *(second.kv_used for second in self.timeline), 0)
        return _share(used, self.last.kv.total)

    @property
    def memory(self) -> float | None:
        """Share of possible memory reads that steps made; None where that is not known."""
        ceiling = self.settings.memory_bytes_per_second
        return _share(self.steps.bytes, ceiling * self.steps.seconds) if ceiling and self.steps.bytes else None

    @property
    def arithmetic(self) -> float | None:
        """Share of possible arithmetic that steps made; None where that is not known."""
        ceiling = self.settings.operations_per_second
        return (
            _share(self.steps.operations, ceiling * self.steps.seconds) if ceiling and self.steps.operations else None
        )

    @property
    def contention(self) -> float:
        """Share of steps' time in which a thread of the engine could have run and had no processor."""
        return min(1.0, _share(self.steps.cpu_wait, self.steps.seconds))

    @property
    def bookkeeping(self) -> float:
        """Share of steps' time in which they were planned, tokens were chosen, and outputs were sent."""
        return _share(self.steps.schedule + self.steps.sample + self.steps.send, self.steps.seconds)

    @property
    def chunks(self) -> float:
        """Share of steps' time that went to steps with prompts in them."""
        return _share(self.steps.chunk_seconds, self.steps.seconds)

    @property
    def chunk_step(self) -> float | None:
        """Seconds of a step with prompts in it, in the mean; None where there was none."""
        return self.steps.chunk_seconds / self.steps.chunk_steps if self.steps.chunk_steps else None

    @property
    def plain_step(self) -> float | None:
        """Seconds of a step that only decoded, in the mean; None where there was none."""
        count = self.steps.steps - self.steps.chunk_steps
        return (self.steps.seconds - self.steps.chunk_seconds) / count if count > 0 else None

    @property
    def hits(self) -> float | None:
        """Share of the prompts' tokens looked up in the prefix cache that were there; None where none were."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else None

    @property
    def outside(self) -> int:
        """Requests in flight at both ends of the window that the engine neither ran nor had waiting."""
        return max(0, min(end.in_flight - end.running - end.waiting for end in (self.first, self.last)))

    def held(self, wait: Wait) -> float:
        """Share of the window in which a sequence waited for this."""
        return min(1.0, self.held_seconds(wait) / self.seconds)

    def held_seconds(self, wait: Wait) -> float:
        """Seconds that requests were held up by this cause."""
        return self.steps.held[WAITS.index(wait)]


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def observe(first: Stats, second: Stats) -> Observation:
    """What happened between two answers of `GET /v1/stats`.

    Raises ConfigurationError where they are not of one server's life, or no time has passed.
    """
    before, after = first.life, second.life
    seconds = second.uptime - first.uptime
    if first.model != second.model or seconds <= 0 or after.steps.steps < before.steps.steps:
        raise ConfigurationError("The server was started again while it was looked at; ask once more.")
    return Observation(
        model=second.model,
        version=second.version,
        seconds=seconds,
        ready=second.ready,
        why_not=second.why_not,
        restarts=second.restarts - first.restarts,
        settings=second.settings,
        first=first.now,
        last=second.now,
        latency=second.minute.latency,
        slo=second.minute.slo,
        cost_per_million_tokens=second.minute.cost_per_million_tokens,
        timeline=tuple(each for each in second.timeline if first.at < each.at <= second.at),
        api_cpu=_processors(first.processes.get("api"), second.processes.get("api"), seconds),
        requests=_counts(before.requests, after.requests),
        refused=_counts(before.refused, after.refused),
        prompt_tokens=after.prompt_tokens - before.prompt_tokens,
        output_tokens=after.output_tokens - before.output_tokens,
        recomputed_tokens=after.recomputed_tokens - before.recomputed_tokens,
        queried_tokens=after.prefix_queried_tokens - before.prefix_queried_tokens,
        hit_tokens=after.prefix_hit_tokens - before.prefix_hit_tokens,
        steps=after.steps.since(before.steps),
    )


def _counts(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in after.items()}


def _processors(before: ProcessFigures | None, after: ProcessFigures | None, seconds: float) -> float | None:
    """How many processors a process used; None where that cannot be told."""
    if before is None or after is None or before.cpu_seconds is None or after.cpu_seconds is None:
        return None
    used = (after.cpu_seconds - before.cpu_seconds) / seconds
    return used if used >= 0 else None
