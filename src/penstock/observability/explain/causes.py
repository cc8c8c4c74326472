"""What a request's time went into: seconds of each cause, which together are all of it.

A cause's seconds are an estimate of how much sooner the request would have ended without it, everything else being as
it was. Phases follow one another, so each second of the request lies in one phase, and is given to causes of that phase
only; `docs/explain.md` says how, and with what in mind.
"""

from collections import defaultdict
from collections.abc import Mapping

from penstock.core.facts import StepTotals, Wait
from penstock.core.work import ModelWork
from penstock.engine.journal import ComputedChunk, Journal
from penstock.observability.explain.explanation import CauseCode
from penstock.observability.explain.phases import Course, Span

# What waiting for something means; a step without a token left has others' prompts in it.
_QUEUED: dict[Wait, CauseCode] = {
    "rows": "queue_rows",
    "pace": "queue_pace",
    "blocks": "queue_memory",
    "budget": "neighbour_prefill",
    "share": "queue_share",
    "place": "queue_place",
    "prefix": "queue_prefix",
    "scores": "queue_scores",
    "background": "queue_background",
}

NO_WORK = ModelWork()

# What is computed takes some processor's time. Steps tell every tenth of a second how long they waited for one, so that
# what is told within a short request can be more than its own steps took.
MOST_STARVED = 0.99

Seconds = defaultdict[CauseCode, float]


def attribute(course: Course, work: ModelWork = NO_WORK) -> dict[CauseCode, float]:
    """Seconds by cause, of the whole request, without those that have none.

    `work` is what the model's steps cost, as far as it is known.
    """
    total = _none()
    for name, phase in course.phases.items():
        match name:
            case "receive":
                late = phase.within(course.account.arrived, course.account.begun)
                found: Mapping[CauseCode, float] = {"busy_server": late, "slow_upload": phase.seconds - late}
            case "prepare":
                found = _preparing(course)
            case "grammar":
                found = {"grammar_compile": phase.seconds}
            case "find":
                found = {"kv_fetch": phase.seconds}
            case "queue":
                found = _queued(course, phase)
            case "fetch":
                found = {"kv_fetch": phase.seconds}
            case "prefill":
                found = _prefilled(course, phase)
            case "decode":
                found = _decoded(course, phase, work)
            case "deliver":
                found = {"slow_reader": sum(phase.within(each.began, each.ended) for each in stalls(course))}
        for code, seconds in _fitted(found, phase.seconds).items():
            total[code] += seconds
    _claim_own(course, total)
    return {code: seconds for code, seconds in total.items() if seconds > 0}


def stalls(course: Course) -> list[Span]:
    """When the server waited for the client to read."""
    account = course.account
    spans = [Span(each.began, each.began + each.seconds) for each in account.stalls]
    if account.sending is not None and account.ended is None:
        spans.append(Span(account.sending, max(account.sending, course.now.at)))
    return spans


def interruptions(journal: Journal, end: float) -> list[Span]:
    """When there was no engine: from the end of one to the first chunk that the next one computed, or to `end`."""
    spans = []
    for began in journal.interrupted:
        later = [chunk.began for chunk in journal.chunks if chunk.began >= began]
        spans.append(Span(began, max(began, min(later, default=end))))
    return spans


def preemptions(journal: Journal, end: float) -> list[Span]:
    """When it had lost its blocks and was not back."""
    spans, returned = [], sorted(journal.returned)
    for began in sorted(journal.preempted):
        later = [at for at in returned if at >= began]
        spans.append(Span(began, max(began, min(later, default=end))))
        if later:
            returned.remove(later[0])
    return spans


def computed_again(journal: Journal) -> list[bool]:
    """For each chunk, whether its positions had been computed before."""
    reached, again = 0, []
    for chunk in journal.chunks:
        again.append(chunk.start + chunk.tokens <= reached or chunk.start < reached)
        reached = max(reached, chunk.start + chunk.tokens)
    return again


def _none() -> Seconds:
    return defaultdict(float)


def _claim_own(course: Course, total: Seconds) -> None:
    """What the request's other prompts took is no neighbour's, although steps tell of one prompt beside others."""
    journal = course.journal
    if journal is None or len(course.account.journals) < 2:
        return
    span = Span(journal.submitted.at, course.whole.ended)
    took = sum(
        span.within(chunk.began, chunk.began + chunk.seconds) * chunk.tokens / _rows_and_tokens(chunk)
        for other in course.account.journals
        if other is not journal
        for chunk in other.chunks
    )
    own = min(took, total["neighbour_prefill"])
    total["neighbour_prefill"] -= own
    total[_why_computed(journal)] += own


def _rows_and_tokens(chunk: ComputedChunk) -> int:
    """A step takes about as long as its tokens; those that only decode are few."""
    return max(1, chunk.tokens + chunk.beside_tokens + chunk.beside_rows)


def _fitted(found: Mapping[CauseCode, float], seconds: float) -> Seconds:
    """No more than the phase has; what is left of it is for "other"."""
    kept = defaultdict(float, {code: max(0.0, each) for code, each in found.items()})
    total = sum(kept.values())
    if total > seconds:
        for code in kept:
            kept[code] *= seconds / total
        return kept
    kept["other"] += seconds - total
    return kept


def _preparing(course: Course) -> Mapping[CauseCode, float]:
    done = course.account.preparation
    starved = max(0.0, done.worked - done.computed)
    return {"tokenizer_busy": done.waited, "cpu_contention": starved, "tokenisation": done.worked - starved}


def _queued(course: Course, phase: Span) -> Seconds:
    assert course.journal is not None
    first = min((at for at in course.journal.interrupted if at <= phase.ended), default=phase.ended)
    found = _none()
    found["engine_restart"] = phase.ended - max(first, phase.began)
    seconds = phase.seconds - found["engine_restart"]
    did = course.between(course.journal.submitted, course.journal.admitted)
    waits = _none()
    for wait, held in did.waited_for().items():
        waits[_QUEUED[wait]] += held
    named = min(seconds, sum(waits.values()))
    for code, held in waits.items():
        found[code] = held * named / sum(waits.values())
    # No request waited when the step began in whose midst it came.
    if did.seconds > 0:
        found["neighbour_prefill"] += (seconds - named) * min(1.0, did.chunk_seconds / did.seconds)
    return found


def _prefilled(course: Course, phase: Span) -> Seconds:
    journal = course.journal
    assert journal is not None
    # Whatever was done before an engine's end was in vain.
    ends = [span.ended for span in interruptions(journal, phase.ended) if phase.began <= span.began <= phase.ended]
    resumed = min(max(ends, default=phase.began), phase.ended)
    rest = Span(resumed, phase.ended)
    found = _none()
    found["engine_restart"] = resumed - phase.began
    lost = sum(rest.within(each.began, each.ended) for each in preemptions(journal, phase.ended))
    found["kv_fetch"] = _fetched_within(rest, journal)
    did = course.between(journal.begun, course.generated)
    computed = recomputed = beside = steps = 0.0
    for chunk, repeated in zip(journal.chunks, computed_again(journal), strict=True):
        if not rest.began <= chunk.began <= rest.ended:
            continue
        lasted = chunk.seconds * _part_left_out(journal)
        each = lasted / _rows_and_tokens(chunk)
        if repeated:
            recomputed += each * chunk.tokens
        else:
            computed += each * chunk.tokens
        beside += each * chunk.beside_tokens
        steps += lasted
    found["preemption"] = lost + recomputed
    starved = computed * _starved(course)
    found["cpu_contention"] = starved
    found[_why_computed(journal)] += computed - starved
    active = 1.0 - (lost + found["kv_fetch"]) / phase.seconds if phase.seconds else 0.0
    found["neighbour_prefill"] = beside + max(0.0, did.chunk_seconds - steps) * active
    return found


def _fetched_within(span: Span, journal: Journal) -> float:
    """Seconds in which it waited for what a tier had, after it had been preempted."""
    ends = {fetch.began: span.ended if fetch.ended is None else fetch.ended.at for fetch in journal.fetches}
    return sum(span.within(began, ended) for began, ended in ends.items())


def _part_left_out(journal: Journal) -> float:
    """By how much what is known of some chunks stands for all of them."""
    kept = sum(chunk.tokens for chunk in journal.chunks)
    return journal.computed_tokens / kept if journal.chunks_left_out and kept else 1.0


def _why_computed(journal: Journal) -> CauseCode:
    """What would have spared the computation of the prompt."""
    prefix = journal.prefix
    if prefix is None or prefix.missing in (None, "off"):
        return "long_prompt"
    if prefix.missing == "evicted":
        return "evicted_prefix"
    if prefix.missing == "different":
        return "changed_prefix"
    # Behind what is cached begins what is new: the next turn of a conversation, the question below a document.
    return "long_prompt" if prefix.found else "cold_prefix"


def _decoded(course: Course, phase: Span, work: ModelWork) -> Seconds:
    journal = course.journal
    assert journal is not None and journal.first_token is not None
    did = course.between(journal.first_token, journal.finished)
    found = _none()
    for span in interruptions(journal, phase.ended):
        down = phase.clipped(span.began, span.ended)
        if down.seconds:
            # What had been told by then is computed once more.
            found["engine_restart"] += down.seconds + min(down.began - phase.began, phase.ended - down.ended)
    found["preemption"] = sum(phase.within(each.began, each.ended) for each in preemptions(journal, phase.ended))
    found["kv_fetch"] = _fetched_within(phase, journal)
    redone = [chunk for chunk in journal.chunks if phase.began <= chunk.began <= phase.ended]
    recomputed = min(sum(chunk.seconds for chunk in redone), phase.seconds)
    # A sample for which there was no place when the first forked computes the prompt for itself.
    why = "preemption" if journal.preempted else "engine_restart" if journal.interrupted else _why_computed(journal)
    found[why] += recomputed
    # Where no facts came, all of it is decoding: that is what the phase is.
    idle = phase.seconds - sum(found.values()) - did.seconds if did.steps else 0.0
    active = phase.seconds - sum(found.values()) - max(0.0, idle)
    if active <= 0:
        return found
    neighbours = min(active, _stretched_by_prompts(did, redone) * active / phase.seconds)
    found["neighbour_prefill"] = neighbours
    found["cpu_contention"] = (active - neighbours) * _starved(course)
    own = active - neighbours - found["cpu_contention"]
    found["long_context"] = own * _context_share(journal, course.account.samples, did, work)
    found["decode"] = own - found["long_context"]
    return found


def _stretched_by_prompts(did: StepTotals, redone: list[ComputedChunk]) -> float:
    """Seconds by which steps took longer than those without prompts, leaving out those with its own."""
    steps = max(0, did.chunk_steps - len(redone))
    seconds = max(0.0, did.chunk_seconds - sum(chunk.seconds for chunk in redone))
    plain = did.steps - did.chunk_steps
    if plain > 0:
        return max(0.0, seconds - steps * (did.seconds - did.chunk_seconds) / plain)
    # There were no others to compare with: by tokens.
    return seconds * did.chunk_tokens / max(1, did.chunk_tokens + did.decodes)


def _context_share(journal: Journal, samples: int, did: StepTotals, work: ModelWork) -> float:
    """The part of the steps' time in which they read what is known of its own context, as bytes go."""
    if not did.bytes or not did.seconds:
        return 0.0
    # A sample has a token more at each step, so that it attends to half of its output on average.
    length = journal.prompt_tokens + journal.output_tokens // (2 * max(1, samples))
    read = journal.output_tokens * sum(
        each.layers * each.kv_bytes * (length if each.window is None else min(length, each.window))
        for each in work.attention
    )
    return min(1.0, read / did.bytes) * min(1.0, did.execute / did.seconds)


def _starved(course: Course) -> float:
    """The part of the engine's time in which its threads waited for a processor.

    It is taken of what was computed for the request itself, at any time: what others' work takes is theirs, however
    slow they were.
    """
    journal = course.journal
    assert journal is not None
    did = course.between(journal.submitted, journal.finished)
    return min(MOST_STARVED, did.cpu_wait / did.seconds) if did.seconds else 0.0
