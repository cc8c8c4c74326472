"""The timeline: phases with what happened in them, in words and figures."""

from penstock.core.facts import PrefixFound, Tier, Unread, Wait
from penstock.engine.journal import ComputedChunk, Fetch
from penstock.observability.explain.causes import computed_again, interruptions, preemptions, stalls
from penstock.observability.explain.explanation import Part, PartName, Phase, PhaseName, State
from penstock.observability.explain.phases import Course
from penstock.observability.explain.wording import duration, number

# A call takes a moment even where nothing is in its way.
_LEAST_WAIT = 0.0005

# What the first waiting sequence needs, in words.
WAITING: dict[Wait, str] = {
    "rows": "a place in the batch (--max-num-seqs)",
    "pace": "a place in the batch, which the time between tokens keeps small (--target-itl)",
    "blocks": "KV memory (--kv-cache-memory)",
    "budget": "tokens of a step, which others' prompts have (--max-num-batched-tokens)",
    "share": "its key's next share of a step",
    "place": "a place that is not kept for other keys",
    "prefix": "a prefix that another request computes",
    "scores": "the scores of others' prompts",
    "background": "everybody else, as its priority has it",
}


# Tiers in words, and why what they had was not taken.
PLACES: dict[Tier, str] = {
    "pool": "the pool",
    "memory": "the processor's memory",
    "peer": "the replica that has computed the prompt",
    "disk": "the disk",
    "shared": "the shared store",
}
LEFT: dict[Unread, str] = {
    "slower": "were left there, since reading was expected to take longer than computing",
    "no_room": "were left there, since the pool had no room for them",
    "gone": "were left there, since what comes before them is gone",
    "failed": "could not be read",
    "late": "did not come in time",
}


def timeline_of(course: Course) -> list[Phase]:
    """The phases in order, each with the parts that begin in it."""
    parts = _parts(course)
    told = []
    for name, span in course.phases.items():
        inside = [part for where, part in parts if where == name]
        start = span.began - course.account.arrived
        told.append(
            Phase(name, start, span.seconds, _detail(name, course), sorted(inside, key=lambda part: part.start))
        )
    return told


def _parts(course: Course) -> list[tuple[PhaseName, Part]]:
    """What happened, and in which phase it began; nothing of it lies outside of the request."""
    whole, found = course.whole, list[tuple[PhaseName, Part]]()

    def tell(name: PhaseName | None, kind: PartName, began: float, ended: float, detail: str) -> None:
        span = whole.clipped(began, ended)
        where = name or _phase_at(course, span.began)
        found.append((where, Part(kind, span.began - whole.began, span.seconds, detail)))

    done, prepare = course.account.preparation, course.phases.get("prepare")
    if prepare is not None and done.worked:
        begins = prepare.began + min(done.waited, prepare.seconds)
        if done.waited > _LEAST_WAIT:
            tell("prepare", "tokenizer_wait", prepare.began, begins, "for a thread that tokenizes")
        worked = min(begins + done.worked, prepare.ended)
        tell("prepare", "tokenise", begins, worked, f"{duration(done.computed)} of it with a processor")
    journal = course.journal
    if journal is not None:
        # What it waited for at first is a phase.
        for fetch in [each for each in journal.fetches if each not in journal.first_fetches]:
            ended = whole.ended if fetch.ended is None else fetch.ended.at
            tell(None, "fetch", fetch.began, ended, fetch_words(fetch))
        for chunk, again in zip(journal.chunks, computed_again(journal), strict=True):
            tell(None, "chunk", chunk.began, chunk.began + chunk.seconds, _chunk(chunk, again))
        for span in preemptions(journal, whole.ended):
            tell(None, "preempted", span.began, span.ended, "its KV blocks went to older requests")
        for span in interruptions(journal, whole.ended):
            tell(None, "restart", span.began, span.ended, "the engine failed and was started again")
    for span in stalls(course):
        tell(None, "stall", span.began, span.ended, "its client did not read")
    return found


def _phase_at(course: Course, moment: float) -> PhaseName:
    for name, span in course.phases.items():
        if moment < span.ended:
            return name
    return next(reversed(course.phases))


def _chunk(chunk: ComputedChunk, again: bool) -> str:
    last = chunk.start + chunk.tokens
    text = f"tokens {number(chunk.start)} to {number(last - 1)}" + (", computed again" if again else "")
    beside = []
    if chunk.beside_tokens:
        beside.append(f"{number(chunk.beside_tokens)} of others' prompts")
    if chunk.beside_rows:
        beside.append(f"{number(chunk.beside_rows)} decoding")
    return text + (f", beside {' and '.join(beside)}" if beside else "")


def _detail(name: PhaseName, course: Course) -> str:
    account, journal = course.account, course.journal
    match name:
        case "receive":
            return f"{number(account.body_bytes)} bytes of body" if account.received is not None else "the body comes"
        case "prepare":
            return f"{number(account.prompt_tokens)} tokens" if account.taken_on is not None else ""
        case "grammar":
            return "its grammar is compiled"
        case "find":
            return "the replica is asked that has computed its prompt"
        case "queue":
            return _queue(course)
        case "fetch":
            assert journal is not None
            return "; ".join(map(fetch_words, journal.first_fetches))
        case "prefill":
            assert journal is not None
            left = f", {journal.chunks_left_out} chunks not shown" if journal.chunks_left_out else ""
            return f"{number(journal.computed_tokens)} tokens computed{_found(journal.prefix)}{left}"
        case "decode":
            return _decode(course)
        case "deliver":
            return "what was left to send"


def fetch_words(fetch: Fetch) -> str:
    """Such as "448 tokens from the disk, 1.8 MiB"."""
    where = PLACES[fetch.tier]
    if fetch.ended is None:
        return f"{number(fetch.expected)} tokens are read from {where}"
    came = f"{number(fetch.tokens)} tokens from {where}, {fetch.bytes / 2**20:,.1f} MiB"
    return came if fetch.why_left is None else f"{came}; {number(fetch.left)} {LEFT[fetch.why_left]}"


def _queue(course: Course) -> str:
    assert course.journal is not None
    waited = course.between(course.journal.submitted, course.journal.admitted).waited_for()
    named = sorted(waited.items(), key=lambda item: -item[1])
    return "; ".join(f"for {WAITING[wait]}" for wait, _ in named)


def _found(prefix: PrefixFound | None) -> str:
    return f", {number(prefix.found)} found in the prefix cache" if prefix is not None else ""


def _decode(course: Course) -> str:
    journal = course.journal
    assert journal is not None
    did = course.between(journal.first_token, journal.finished)
    if not did.steps:
        return f"{number(journal.output_tokens)} tokens"
    prompts = f", {number(did.chunk_steps)} of them with prompts" if did.chunk_steps else ""
    batch = f", {did.rows / did.steps:.1f} sequences at a time" if did.rows else ""
    drafts = ""
    if journal.drafted_tokens:
        drafts = f", {number(journal.accepted_tokens)} of {number(journal.drafted_tokens)} drafted tokens right"
    searched = f", found among {number(journal.searched_tokens)} of all beams" if journal.searched_tokens else ""
    return f"{number(journal.output_tokens)} tokens{searched} in {number(did.steps)} steps{prompts}{batch}{drafts}"


def state_of(course: Course) -> State:
    """What is done with the request now."""
    if course.account.ended is not None:
        return "ended"
    return _STATES[next(reversed(course.phases))]


_STATES: dict[PhaseName, State] = {
    "receive": "receiving",
    "prepare": "preparing",
    "grammar": "compiling",
    "find": "fetching",
    "queue": "waiting",
    "fetch": "fetching",
    "prefill": "prefilling",
    "decode": "decoding",
    "deliver": "delivering",
}
