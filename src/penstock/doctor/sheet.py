"""The cheat sheet: eleven problems, the technique against each, and its setting. Pure.

A row says whether its problem is there, by the figures of an observation, and, where this release has no such
technique, what is lacking.
"""

from collections.abc import Callable
from typing import Literal

import msgspec

from penstock.doctor.finding import Evidence, in_number
from penstock.doctor.observation import Observation
from penstock.doctor.resources import BUSY, HELD, in_waiting

Verdict = Literal["applies", "does not apply", "cannot be told"]

# The share of steps' time from which on prompts weigh.
_PROMPTS_WEIGH = 0.2
# Streams notice a step with prompts in it that takes this many times a step without, and this many seconds more.
_STALL = 2.0
_STALL_SECONDS = 0.01
# Latencies come in spikes where the p99 is this many times the median, and this many seconds more.
_SPIKE = 4.0
_SPIKE_SECONDS = 0.02
_FEW = 20
# Fewer sequences than this share the reading of weights so little that a guess of several tokens at once would pay.
_SMALL_BATCH = 4.0
_READS_WEIGH = 0.5
_SLOW_ITL = 0.05
_ARITHMETIC_USED = 0.6
_ENOUGH_HITS = 0.5
_SMALL_SHARE = 0.35


class Answer(msgspec.Struct, frozen=True):
    """What a rule says: whether the problem is there, why, and what to try."""

    verdict: Verdict
    why: str
    advice: str | None = None
    evidence: tuple[Evidence, ...] = ()


class SheetRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row with its answer.

    Attributes:
        lacking: what this release does not have of the technique; None where it has it.
        setting: that asks for the technique.
    """

    number: int
    problem: str
    technique: str
    layer: str
    setting: str
    verdict: Verdict
    lacking: str | None
    why: str
    advice: str | None
    evidence: tuple[Evidence, ...]

    @property
    def in_words(self) -> str:
        """The verdict, and whether anything can be done about it."""
        if self.lacking is None:
            return self.verdict
        acting = "cannot be acted on" if self.verdict == "applies" else "could not be acted on"
        return f"{self.verdict}; {acting} by this release"


def _queue(seen: Observation) -> Answer:
    waited, paced, arithmetic, most = seen.held("rows"), seen.held("pace"), seen.arithmetic, seen.settings.max_num_seqs
    evidence = (
        Evidence(f"{seen.held_seconds('rows'):.2f} s of {seen.seconds:.1f} s", "steps.held: rows"),
        Evidence(f"{seen.held_seconds('pace'):.2f} s", "steps.held: pace"),
        Evidence(f"{seen.last.running} running, {seen.last.waiting} waiting, of at most {most} at a time", "now"),
        *_share("arithmetic", arithmetic, "steps.operations"),
    )
    if max(waited, paced) < HELD:
        return Answer("does not apply", f"{_begin(in_waiting(waited))} for a row.", None, evidence)
    if arithmetic is not None and arithmetic >= _ARITHMETIC_USED:
        why = f"There is a queue, but the machine is used: {arithmetic:.0%} of its arithmetic."
        return Answer("does not apply", why, "Add machines, or take on less.", evidence)
    if waited < HELD:
        why = f"In {paced:.0%} of the time requests waited because a larger batch would have made streams slower than "
        why += f"they are to be (target_itl {seen.settings.target_itl})."
        return Answer("applies", why, "Raise --target-itl or --slo itl= if streams may be slower.", evidence)
    why = f"In {waited:.0%} of the time requests waited for a row while {seen.batch:.1f} sequences ran in a step."
    advice = "Raise --max-num-seqs"
    advice += f" from {most} to {2 * most}" if most else ""
    if seen.kv > 0.5:
        advice += ", and --kv-cache-memory with it: more sequences need more blocks"
    return Answer("applies", why, f"{advice}; decoding costs little more for twice as many.", evidence)


def _prefill(seen: Observation) -> Answer:
    chunk, plain, itl = seen.chunk_step, seen.plain_step, seen.latency.itl
    waited = seen.held("budget")
    evidence = (
        Evidence(f"{_ms(chunk)} with prompts, {_ms(plain)} without", "steps.chunk_seconds, and steps' times"),
        Evidence(f"{seen.held_seconds('budget'):.2f} s of {seen.seconds:.1f} s", "steps.held: budget"),
        Evidence(f"p50 {_ms(itl.p50)}, p95 {_ms(itl.p95)}, p99 {_ms(itl.p99)}", "latency.itl"),
    )
    # Some sequences decoded in steps with prompts; otherwise no stream waited for prompts.
    beside = seen.steps.decodes > 0 and chunk is not None and plain is not None
    stalled = beside and chunk > _STALL * plain and chunk - plain > _STALL_SECONDS  # type: ignore[operator]
    if stalled and seen.chunks >= _PROMPTS_WEIGH:
        assert chunk is not None and plain is not None, "it is beside"
        why = f"Steps with prompts in them take {_ms(chunk)} and others {_ms(plain)}: running streams wait for prompts."
        target = max(plain * _STALL, 0.01)
        advice = (
            f"Start with --target-itl {target:.2g}, which cuts prompts into steps of about that length, or with a "
            "lower --max-num-batched-tokens; first tokens of long prompts come later then."
        )
        return Answer("applies", why, advice, evidence)
    if waited >= HELD:
        why = f"In {waited:.0%} of the time a prompt waited for tokens of a step; {seen.budget:.0%} of them were used."
        advice = "Raise --target-itl, or --max-num-batched-tokens, if streams may be slower: prompts then wait less."
        return Answer("applies", why, advice, evidence)
    why = f"Prompts take {seen.chunks:.0%} of the steps' time, and their steps do not stand out."
    return Answer("does not apply", why if chunk is not None else "No prompt was computed.", None, evidence)


def _prefixes(seen: Observation) -> Answer:
    caching, hits, weigh = seen.settings.prefix_caching, seen.hits, seen.chunks
    evidence = (
        Evidence(f"{seen.hit_tokens:,} of {seen.queried_tokens:,} tokens", "prefix_hit_tokens, prefix_queried_tokens"),
        Evidence(f"{weigh:.0%} of the steps' time", "steps.chunk_seconds"),
        Evidence(f"p50 {_ms(seen.latency.ttft.p50)}, p95 {_ms(seen.latency.ttft.p95)}", "latency.ttft"),
    )
    if caching is False and weigh >= _PROMPTS_WEIGH:
        why = f"Prefix caching is off, and prompts take {weigh:.0%} of the steps' time: repetitions are computed again."
        return Answer("applies", why, "Leave out --no-enable-prefix-caching.", evidence)
    if caching is False:
        return Answer(
            "does not apply", f"It is off, and prompts take {weigh:.0%} of the steps' time only.", None, evidence
        )
    if hits is None:
        return Answer("does not apply", "No prompt was looked up in the prefix cache.", None, evidence)
    if hits >= _ENOUGH_HITS or weigh < _PROMPTS_WEIGH:
        why = f"{hits:.0%} of the prompts' tokens came from the cache, and prompts take {weigh:.0%} of the steps' time."
        return Answer("does not apply", why, None, evidence)
    if seen.last.kv.free:
        why = f"The cache had {hits:.0%} of the prompts' tokens, and nothing had to be evicted: they do not repeat."
        return Answer("does not apply", why, None, evidence)
    why = f"The cache had {hits:.0%} of the prompts' tokens: they do not repeat, or what they share was evicted."
    advice = "The account of a slow request says which (GET /v1/requests/ID/explain)."
    return Answer("cannot be told", why, advice, evidence)


def _kv(seen: Observation) -> Answer:
    waited, preempted = seen.held("blocks"), seen.steps.preemptions
    pressure = seen.refused.get("memory_pressure", 0)
    evidence = (
        Evidence(f"{seen.held_seconds('blocks'):.2f} s of {seen.seconds:.1f} s", "steps.held: blocks"),
        Evidence(f"{preempted} preemptions, {seen.recomputed_tokens:,} tokens again", "steps.preemptions"),
        Evidence(f"{pressure}", "refused: memory_pressure"),
        Evidence(f"{seen.kv:.0%} of {seen.last.kv.total} blocks at most", "now.kv, timeline"),
    )
    if waited < HELD and not preempted and not pressure:
        return Answer("does not apply", f"Sequences held at most {seen.kv:.0%} of the KV pool.", None, evidence)
    parts = []
    if waited >= HELD:
        parts.append(f"requests waited for blocks in {waited:.0%} of the time")
    if preempted:
        parts.append(f"{preempted} sequences lost theirs, and {seen.recomputed_tokens:,} tokens were computed again")
    if pressure:
        parts.append(f"{pressure} requests were refused for want of memory")
    advice = (
        "Raise --kv-cache-memory; where there is no more memory, --kv-cache-dtype int8 makes the KV of tokens smaller, "
        "--quantization int4 the weights, and a lower --max-model-len keeps out the longest prompts. On a GPU, "
        "--swap-space keeps what preempted sequences have computed."
    )
    return Answer("applies", f"The pool is too small: {', and '.join(parts)}.", advice, evidence)


def _spikes(seen: Observation) -> Answer:
    itl, preempted = seen.latency.itl, seen.steps.preemptions
    evidence = (
        Evidence(f"p50 {_ms(itl.p50)}, p99 {_ms(itl.p99)}, most {_ms(itl.max)}", "latency.itl"),
        Evidence(f"{preempted}", "steps.preemptions"),
        Evidence(f"{seen.contention:.0%} of the steps' time", "steps.cpu_wait"),
    )
    if itl.p50 is None or itl.p99 is None or itl.count < _FEW or not seen.steps.decodes:
        return Answer("cannot be told", "Too few tokens were streamed.", None, evidence)
    if seen.busy < HELD:
        # The minute's gaps are those of a load that is over; what the few steps of this window met did not make them.
        why = f"It computed in {seen.busy:.0%} of the time, too little to tell what made the last minute's gaps."
        return Answer("cannot be told", why, None, evidence)
    if itl.p99 < _SPIKE * itl.p50 or itl.p99 - itl.p50 < _SPIKE_SECONDS:
        return Answer("does not apply", f"Gaps are even: p50 {_ms(itl.p50)}, p99 {_ms(itl.p99)}.", None, evidence)
    why = f"One gap in a hundred is {in_number(itl.p99 / itl.p50)} times as long as the median"
    if seen.contention >= HELD:
        cause = f"threads wait for processors in {seen.contention:.0%} of the steps' time"
        advice = "Leave processors to others with --threads, or move them elsewhere; `penstock doctor` looks for them."
    elif preempted:
        cause = f"{preempted} sequences were preempted"
        if seen.recomputed_tokens:
            cause += f", and {seen.recomputed_tokens:,} tokens were computed again"
        advice = "Raise --kv-cache-memory, or lower --max-num-seqs, so that those who run can stay (row 4)."
    elif seen.chunks >= _PROMPTS_WEIGH:
        cause = f"prompts take {seen.chunks:.0%} of the steps' time"
        advice = "Lower --target-itl (row 2), or put what can wait into batches (/v1/batches), which run by themselves."
    else:
        cause = "no cause is seen in the engine's steps"
        advice = "Give requests that must not wait a higher priority; the account of a slow one says what it met."
    return Answer("applies", f"{why}; {cause}.", advice, evidence)


def _decode(seen: Observation) -> Answer:
    itl, reads = seen.latency.itl.p50, seen.memory
    evidence = (
        *_share("memory reads", reads, "steps.bytes"),
        Evidence(f"{seen.batch:.1f} sequences in a step", "steps.rows"),
        Evidence(f"p50 {_ms(itl)}", "latency.itl"),
    )
    if itl is None or not seen.steps.decodes or seen.busy < HELD:
        return Answer("does not apply", "Nothing was decoded.", None, evidence)
    aim = (seen.settings.slo or {}).get("itl", _SLOW_ITL)
    bound = reads is not None and reads >= _READS_WEIGH and seen.batch <= _SMALL_BATCH
    if itl < aim and not bound:
        return Answer("does not apply", f"A token takes {_ms(itl)}, which is within {_ms(aim)}.", None, evidence)
    if seen.chunks >= 0.5:
        why = f"A token takes {_ms(itl)}, but prompts take {seen.chunks:.0%} of the steps' time: see row 2."
        return Answer("does not apply", why, None, evidence)
    why = f"A token takes {_ms(itl)} with {seen.batch:.1f} sequences in a step"
    if reads is not None:
        why += f", which read memory at {reads:.0%} of what is possible"
    smaller = seen.settings.quantization
    advice = {
        "none": "--quantization int4 reads about a quarter of the bytes for each token.",
        "int8": "--quantization int4 reads about half of the bytes for each token.",
    }.get(smaller or "", "A smaller model or memory with more bandwidth would help too.")
    if seen.batch <= _SMALL_BATCH:
        advice += (
            " --speculative auto, where it is off, gives a sequence several tokens of a step if they can be guessed."
        )
    return Answer("applies", f"{why}.", advice, evidence)


def _one_device(seen: Observation) -> Answer:
    if not seen.ready:
        why = f"The engine is not ready: {seen.obstacle}."
        advice = "The server's log says whether memory was the cause."
        return Answer("cannot be told", why, advice, (Evidence("false", "ready"),))
    why = "The model is loaded and served here, so it fits."
    return Answer("does not apply", why, None, (Evidence("true", "ready"),))


def _small_model(seen: Observation) -> Answer:
    python, between = seen.api_cpu, seen.bookkeeping
    evidence = (
        Evidence("not told" if python is None else f"{python:.2f} processors", "processes.api.cpu_seconds"),
        Evidence(f"{between:.0%} of the steps' time", "steps.schedule, sample, send"),
        *_share("arithmetic", seen.arithmetic, "steps.operations"),
        *_share("memory reads", seen.memory, "steps.bytes"),
    )
    unused = max(seen.arithmetic or 0.0, seen.memory or 0.0) < _SMALL_SHARE
    bound = (python is not None and python >= 0.9) or (between >= 0.5 and seen.busy >= BUSY)
    if not bound:
        return Answer("does not apply", "Python around the model is not what takes the time.", None, evidence)
    if not unused:
        return Answer("does not apply", "The machine is used, whatever Python takes.", None, evidence)
    why = "Steps are short, and Python around them takes the time: the API process used "
    why += "an unknown share" if python is None else f"{python:.0%}"
    why += f" of a processor, and {between:.0%} of the steps' time went beside the model."
    advice = "Without a router: several servers on ports of their own (--threads for each), behind any HTTP balancer."
    return Answer("applies", why, advice, evidence)


def _balance(seen: Observation) -> Answer:
    queue = f"{seen.last.waiting} waiting, {seen.last.running} running"
    why = f"One server does not see others; this one has {queue} and computes in {seen.busy:.0%} of the time."
    advice = "Ask the others too: one that computes little while this one has a queue is a fault of what routes."
    return Answer("cannot be told", why, advice, (Evidence(queue, "now"),))


def _bursts(seen: Observation) -> Answer:
    full, slow = seen.refused.get("queue_full", 0), seen.refused.get("slo_unreachable", 0)
    bodies, late = seen.refused.get("bodies_full", 0), seen.requests.get("timed_out", 0)
    evidence = (
        *(Evidence(f"{count}", f"refused: {why}") for why, count in seen.refused.items()),
        Evidence(f"{late}", "requests: timed_out"),
        Evidence(f"{seen.last.waiting} waiting, of at most {seen.settings.max_queued_requests}", "now, settings"),
    )
    if not full + slow + bodies + late:
        return Answer("does not apply", "No request was refused under load or ran out of time.", None, evidence)
    parts = [
        f"{count} {words}"
        for count, words in (
            (full, "were refused since the queue was full"),
            (slow, "were refused since their first token would have come too late"),
            (bodies, "were refused since too many bodies were being received"),
            (late, "ran out of time"),
        )
        if count
    ]
    steady = [second.waiting for second in seen.timeline]
    if steady and min(steady) > 0:
        advice = "The queue was never empty: this is more than the server does at all, and a longer queue would only "
        advice += "wait longer. Take on less, or remove what bounds it."
    else:
        advice = "Raise --max-queued-requests for bursts that may wait, and --request-timeout for those that do."
    return Answer("applies", f"Of the requests, {', '.join(parts)}.", advice, evidence)


class _Row(msgspec.Struct, frozen=True):
    problem: str
    technique: str
    layer: str
    setting: str
    rule: Callable[[Observation], Answer]
    lacking: str | None = None


_ROWS = (
    _Row("full queue, underused device", "continuous batching", "L4b", "--max-num-seqs", _queue),
    _Row(
        "TTFT high under load, prefill blocks decode",
        "chunked prefill",
        "L4b",
        "--target-itl, --max-num-batched-tokens, --slo itl=",
        _prefill,
    ),
    _Row("TTFT high, repeated prefixes", "prefix caching", "L4b", "--enable-prefix-caching", _prefixes),
    _Row(
        "memory short on long or many sequences",
        "paged KV",
        "L4b",
        "--kv-cache-memory, --kv-cache-dtype, --swap-space, --max-model-len",
        _kv,
    ),
    _Row("random latency spikes", "preemption, iteration-level scheduling", "L4b", "priority, --target-itl", _spikes),
    _Row("slow decode", "speculative decoding", "L3", "--speculative, --quantization", _decode),
    _Row("model too large for one device", "tensor parallelism", "L0 + L3", "--tensor-parallel-size", _one_device),
    _Row(
        "model over several nodes",
        "pipeline parallelism",
        "L0 + L3",
        "--pipeline-parallel-size, --machines",
        _one_device,
    ),
    _Row("small model, low throughput", "data parallelism", "L3 + L4a", "–", _small_model, "replicas behind a router"),
    _Row("one instance full, others idle", "load balancing by queue", "L4a", "–", _balance, "router"),
    _Row(
        "drops in bursts",
        "admission control, queueing",
        "L4a",
        "--max-queued-requests, --max-ttft, --request-timeout",
        _bursts,
    ),
)


def judge_sheet(seen: Observation) -> tuple[SheetRow, ...]:
    """All eleven rows with their answers."""
    rows = []
    for number, row in enumerate(_ROWS, start=1):
        answer = row.rule(seen)
        rows.append(
            SheetRow(
                number=number,
                problem=row.problem,
                technique=row.technique,
                layer=row.layer,
                setting=row.setting,
                verdict=answer.verdict,
                lacking=row.lacking,
                why=answer.why,
                advice=answer.advice,
                evidence=answer.evidence,
            )
        )
    return tuple(rows)


def _begin(words: str) -> str:
    return words[0].upper() + words[1:]


def _share(name: str, share: float | None, source: str) -> tuple[Evidence, ...]:
    return () if share is None else (Evidence(f"{share:.0%} of the machine's {name}", source),)


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1000 * seconds:,.3g} ms"
