"""The verdict: the largest cause in a sentence, with the setting that would change it."""

from collections.abc import Callable, Mapping

from penstock.observability.explain.explanation import Cause, CauseCode, Verdict
from penstock.observability.explain.phases import Course
from penstock.observability.explain.timeline import PLACES
from penstock.observability.explain.wording import duration, number

# What came on top of decoding is told where it is at least this share of the whole.
_WORTH_TELLING = 0.1

_Sentence = Callable[[Course], str]


def causes_of(course: Course, seconds: Mapping[CauseCode, float]) -> list[Cause]:
    """All of them, the largest first."""
    whole = course.whole.seconds
    return [
        Cause(code, each, each / whole if whole else 0.0, setting_of(code, course))
        for code, each in sorted(seconds.items(), key=lambda item: -item[1])
    ]


def verdict_of(course: Course, causes: list[Cause]) -> Verdict:
    """What of the causes is the largest."""
    if not causes:
        return Verdict("other", 0.0, None, "It took no time worth speaking of.")
    first = causes[0]
    whole = course.whole.seconds
    sentence = f"{duration(first.seconds)} of its {duration(whole)} ({first.share:.0%}) {SENTENCES[first.code](course)}"
    others = [cause for cause in causes[1:] if cause.code != "other" and cause.share >= _WORTH_TELLING]
    if first.code == "decode" and others:
        more = others[0]
        hint = f" ({more.setting})" if more.setting else ""
        sentence += f"; the most on top of that, {duration(more.seconds)}, is {NAMES[more.code]}{hint}"
    return Verdict(first.code, first.seconds, first.setting, sentence + ".")


def setting_of(code: CauseCode, course: Course) -> str | None:
    """The option of the server, or the field of the request, that would change it."""
    if code == "neighbour_prefill":
        # Others' prompts stall tokens within a step; before the first token, they leave no room in it.
        return "--target-itl" if _mostly_decoding(course) else "--long-prefill-token-threshold"
    if code == "long_prompt" and _cache_is_off(course):
        return "--enable-prefix-caching"
    return _SETTINGS.get(code)


def _mostly_decoding(course: Course) -> bool:
    decode = course.phases.get("decode")
    return decode is not None and decode.seconds > course.whole.seconds / 2


def _cache_is_off(course: Course) -> bool:
    prefix = None if course.journal is None else course.journal.prefix
    return prefix is not None and prefix.missing == "off"


_SETTINGS: dict[CauseCode, str] = {
    "tokenizer_busy": "prompt",
    "tokenisation": "prompt",
    "grammar_compile": "response_format",
    "queue_rows": "--max-num-seqs",
    "queue_pace": "--target-itl",
    "queue_memory": "--kv-cache-memory",
    "queue_share": "weight",
    "queue_place": "--max-num-seqs",
    "queue_background": "priority",
    "kv_fetch": "--kv-cache-memory",
    "cold_prefix": "prompt",
    "changed_prefix": "prompt",
    "evicted_prefix": "--kv-cache-memory",
    "long_prompt": "prompt",
    "preemption": "--kv-cache-memory",
    "cpu_contention": "--threads",
    "long_context": "prompt",
    "decode": "max_tokens",
}

# Names of causes beside another.
NAMES: dict[CauseCode, str] = {
    "busy_server": "the wait until the server got to it",
    "slow_upload": "the time that its body took to arrive",
    "tokenizer_busy": "the wait for a thread that tokenizes",
    "tokenisation": "the tokenisation of its prompt",
    "grammar_compile": "the compilation of its grammar",
    "queue_rows": "the wait for a place in the batch",
    "queue_pace": "the wait for a place in a batch that the time between tokens keeps small",
    "queue_memory": "the wait for KV memory",
    "queue_share": "the wait for its key's share of steps",
    "queue_place": "the wait for a place that is kept for other keys",
    "queue_prefix": "the wait for a prefix that another request computed",
    "queue_scores": "the wait for others' scores of prompts",
    "queue_background": "the wait for everybody else",
    "kv_fetch": "the wait for a prefix that was read from a tier beyond the pool",
    "neighbour_prefill": "the computation of others' prompts",
    "cold_prefix": "the computation of a prompt that no request had before",
    "changed_prefix": "the computation of a prompt that goes on otherwise than the cached one",
    "evicted_prefix": "the computation of a prefix that had been evicted",
    "long_prompt": "the computation of its prompt",
    "preemption": "its preemption",
    "engine_restart": "the restart of the engine",
    "cpu_contention": "the wait for a processor",
    "long_context": "the reading of its long context",
    "slow_reader": "the wait for its client to read",
}


def _received(course: Course) -> str:
    size = course.account.body_bytes
    what = f"its body of {number(size)} bytes" if size else "its body"
    return f"went by until {what} had arrived, which only its client can send faster"


def _tokenised(course: Course) -> str:
    account = course.account
    return (
        f"went into making {number(account.prompt_tokens)} tokens of a body of {number(account.body_bytes)} bytes; a "
        "shorter prompt, or token ids sent to /v1/completions, take less"
    )


def _neighbours(course: Course) -> str:
    what = "others' prompts were computed while it waited, or in the same steps; "
    if _mostly_decoding(course):
        return what + "--target-itl bounds how long a step takes with them"
    return what + "--long-prefill-token-threshold bounds how much of a step one prompt takes"


def _fetched(course: Course) -> str:
    assert course.journal is not None
    fetches = course.journal.fetches
    where = " and ".join(dict.fromkeys(PLACES[fetch.tier] for fetch in fetches)) or "the disk"
    what = f"it waited for {number(sum(fetch.tokens for fetch in fetches))} tokens of its prefix from {where}"
    return what + ", which spared their computation; more --kv-cache-memory keeps more of them in the pool"


def _computed(course: Course) -> str:
    journals = course.account.journals
    tokens = sum(journal.computed_tokens for journal in journals)
    what = "prompt" if len(journals) == 1 else f"{number(len(journals))} prompts"
    return f"went into computing {number(tokens)} tokens of its {what}"


def _cold(course: Course) -> str:
    return _computed(course) + "; none of it was in the prefix cache; what prompts share belongs at their beginning"


def _changed(course: Course) -> str:
    assert course.journal is not None and course.journal.prefix is not None
    prefix = course.journal.prefix
    where = f"from token {number(prefix.position)} on" if prefix.position is not None else "behind the part found"
    return _computed(course) + f", since {where} it is not as what was cached; what changes belongs at the end"


def _evicted(course: Course) -> str:
    return _computed(course) + " that had been in the prefix cache and were evicted; --kv-cache-memory makes it larger"


def _long(course: Course) -> str:
    if _cache_is_off(course):
        return _computed(course) + "; with --enable-prefix-caching, a beginning that was computed before is not again"
    return _computed(course) + ", which are new; a shorter prompt takes less"


def _preempted(course: Course) -> str:
    assert course.journal is not None
    times = len(course.journal.preempted)
    often = "once" if times == 1 else f"{number(times)} times"
    advice = "--kv-cache-memory gives room for more at a time, and on a GPU --swap-space keeps what was computed"
    return f"it had lost its KV blocks to older requests, {often}; {advice}"


def _restarted(course: Course) -> str:
    return "it waited for the engine, which had failed, and was computed again; the server's log says why"


def _read_context(course: Course) -> str:
    assert course.journal is not None
    tokens = course.journal.prompt_tokens + course.journal.output_tokens // max(1, course.account.samples)
    return (
        f"went into reading the KV of its context of up to {number(tokens)} tokens for each token of output; a shorter "
        "prompt takes less"
    )


def _decoded(course: Course) -> str:
    journal = course.journal
    assert journal is not None
    tokens = journal.output_tokens
    did = course.between(journal.first_token, journal.finished)
    beside = f", {did.rows / did.steps:.1f} sequences at a time" if did.steps and did.rows else ""
    each = f" at {duration(course.phases['decode'].seconds / (tokens - 1))} each" if tokens > 1 else ""
    return (
        f"went into decoding {number(tokens)} tokens{each}{beside}: nothing unusual, it is as fast as this machine "
        "decodes them; fewer (max_tokens) take less"
    )


SENTENCES: dict[CauseCode, _Sentence] = {
    "busy_server": lambda _: (
        "it lay there until the server's API process, which was busy or had no processor, got to it"
    ),
    "slow_upload": _received,
    "tokenizer_busy": lambda _: "it waited for a thread that tokenizes, while others' long prompts had them all",
    "tokenisation": _tokenised,
    "grammar_compile": lambda _: "went into compiling its grammar; a smaller response_format takes less",
    "queue_rows": lambda _: "it waited because the batch was full; --max-num-seqs lets more run at a time",
    "queue_pace": lambda _: "it waited because a larger batch would have taken too long between tokens (--target-itl)",
    "queue_memory": lambda _: "it waited for KV memory that others held; --kv-cache-memory gives room for more",
    "queue_share": lambda _: "it waited since its key had had its share of the steps; the key's weight changes that",
    "queue_place": lambda _: "it waited since what was free is kept for other keys; --max-num-seqs gives more places",
    "queue_prefix": lambda _: "it waited for another request to compute what it then took from the prefix cache",
    "queue_scores": lambda _: "it waited behind others' prompt_logprobs; a step computes few of them",
    "queue_background": lambda _: "it waited for everybody else, as its priority has it; priority changes that",
    "kv_fetch": _fetched,
    "neighbour_prefill": _neighbours,
    "cold_prefix": _cold,
    "changed_prefix": _changed,
    "evicted_prefix": _evicted,
    "long_prompt": _long,
    "preemption": _preempted,
    "engine_restart": _restarted,
    "cpu_contention": lambda _: "threads of the server waited for a processor; leave it more, or give fewer --threads",
    "long_context": _read_context,
    "decode": _decoded,
    "slow_reader": lambda _: "everything was computed, and its client did not read it",
    "other": lambda _: "is explained by nothing that is measured",
}
