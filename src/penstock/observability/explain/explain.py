"""From an account to its explanation. Pure: the caller says what time it is and what engines have done."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.core.ceilings import Ceilings
from penstock.core.facts import TierFound
from penstock.core.work import ModelWork
from penstock.engine.journal import Journal, Mark
from penstock.observability.account import Account
from penstock.observability.explain.causes import NO_WORK, attribute
from penstock.observability.explain.explanation import (
    CauseCode,
    ContextAccount,
    DecodeAccount,
    Explanation,
    Failure,
    PrefixAccount,
    RequestSummary,
    TierAccount,
    Token,
)
from penstock.observability.explain.phases import Course, course_of
from penstock.observability.explain.timeline import PLACES, WAITING, state_of, timeline_of
from penstock.observability.explain.verdict import causes_of, verdict_of

Decode = Callable[[list[int]], str]


@dataclass(frozen=True)
class Figures:
    """What is known of the model and the machine.

    Attributes:
        work: what the model's steps cost, as far as it is known.
        ceilings: what the machine was measured to do; None where it was not.
    """

    work: ModelWork = NO_WORK
    ceilings: Ceilings | None = None


def cause_of(account: Account, now: Mark, figures: Figures) -> CauseCode:
    """The largest cause alone, as log lines have it."""
    seconds = attribute(course_of(account, now), figures.work)
    return max(seconds, key=seconds.__getitem__, default="other")


def explain(
    account: Account, now: Mark, figures: Figures, text: Decode | None = None, *, operator: bool = False
) -> Explanation:
    """Where the request's time went; until `now` where it has not ended.

    Args:
        text: makes text of tokens.
        operator: whether it is told whose it is, and of other tenants; of prompts an operator sees what is kept only.
    """
    course = course_of(account, now)
    causes = causes_of(course, attribute(course, figures.work))
    state = state_of(course)
    prompts = account.prompts if account.ended is not None else []
    kept = prompts[course.prompt] if course.prompt < len(prompts) else None
    return Explanation(
        object="request.explanation",
        id=account.id,
        client_id=account.client_id,
        response_id=account.response_id,
        tenant=account.tenant if operator else None,
        endpoint=account.endpoint,
        created=account.created,
        state=state,
        waits_for=_waits_for(course),
        outcome=account.outcome,
        status=account.status if account.ended is not None else None,
        error=None if account.code is None else Failure(account.code, account.message),
        seconds=course.whole.seconds,
        queue_seconds=account.queue_seconds,
        time_to_first_token=account.time_to_first_token,
        missed=list(account.missed),
        ignored=list(account.ignored),
        prompts=len(account.journals),
        prompt=course.prompt,
        prompt_tokens=account.prompt_tokens,
        output_tokens=account.output_tokens,
        prompt_text=None if kept is None or text is None else text(kept),
        timeline=timeline_of(course),
        prefix=_prefix(course, text, operator=operator, private=operator and kept is None),
        decode=_decode(course, figures),
        context=_context(account),
        causes=causes,
        verdict=verdict_of(course, causes),
    )


def summarize(account: Account, now: Mark, figures: Figures) -> RequestSummary:
    """The same in short, without whose it is."""
    course = course_of(account, now)
    causes = causes_of(course, attribute(course, figures.work))
    return RequestSummary(
        object="request",
        id=account.id,
        client_id=account.client_id,
        response_id=account.response_id,
        tenant=None,
        endpoint=account.endpoint,
        created=account.created,
        state=state_of(course),
        outcome=account.outcome,
        status=account.status if account.ended is not None else None,
        seconds=course.whole.seconds,
        queue_seconds=account.queue_seconds,
        time_to_first_token=account.time_to_first_token,
        missed=list(account.missed),
        prompt_tokens=account.prompt_tokens,
        output_tokens=account.output_tokens,
        verdict=verdict_of(course, causes),
    )


def _waits_for(course: Course) -> str | None:
    """What keeps it waiting now, as far as the engine's last steps tell."""
    account, journal = course.account, course.journal
    if account.ended is not None:
        return None
    if account.sending is not None:
        return "its client, which has to read"
    if journal is None:
        return None
    if journal.admitted is not None:
        waiting = [PLACES[fetch.tier] for fetch in journal.fetches if fetch.ended is None]
        return f"its prefix, which is read from {' and '.join(waiting)}" if waiting else None
    waited = course.between(journal.submitted, None).waited_for()
    return WAITING[max(waited, key=waited.__getitem__)] if waited else "the next step"


def _prefix(course: Course, text: Decode | None, *, operator: bool, private: bool) -> PrefixAccount | None:
    """`private`: the caller is not told what the prompt's tokens are."""
    prefix = None if course.journal is None else course.journal.prefix
    if prefix is None:
        return None
    missing = prefix.missing
    if missing == "other_tenant" and not operator:
        # A client must not learn what other tenants have sent.
        missing = "unseen"
    asked = None if private else course.account.token_at(course.prompt, prefix)
    return PrefixAccount(
        looked_up=prefix.looked_up,
        found=prefix.found,
        missing=missing,
        position=prefix.position,
        asked=_token(asked, text),
        cached=_token(None if private else prefix.cached_token, text),
        evicted_seconds=prefix.evicted_seconds,
        tiers=[_tier(each, course.journal) for each in prefix.tiers],
    )


def _tier(found: TierFound, journal: Journal | None) -> TierAccount:
    waits = [
        fetch.ended.at - fetch.began
        for fetch in ([] if journal is None else journal.first_fetches)
        if fetch.tier == found.tier and fetch.ended is not None
    ]
    return TierAccount(
        tier=found.tier,
        tokens=found.tokens,
        bytes=found.bytes,
        seconds=waits[0] if waits else None,
        left=found.left,
        why_left=found.why_left,
        read_seconds=found.read_seconds,
        compute_seconds=found.compute_seconds,
    )


def _token(token: int | None, text: Decode | None) -> Token | None:
    return None if token is None else Token(token, None if text is None else text([token]))


def _context(account: Account) -> ContextAccount | None:
    policy, dropped = account.kv_policy, sum(account.dropped.values())
    return None if policy is None else ContextAccount(policy.kind, policy.tokens, dropped, dropped == 0)


def _decode(course: Course, figures: Figures) -> DecodeAccount | None:
    journal, phase = course.journal, course.phases.get("decode")
    if journal is None or phase is None or journal.output_tokens < 2:
        return None
    did = course.between(journal.first_token, journal.finished)
    plain = did.steps - did.chunk_steps
    rate = did.bytes / did.seconds if did.bytes and did.seconds else None
    ceilings = figures.ceilings
    tokens = journal.output_tokens - 1
    return DecodeAccount(
        tokens=tokens,
        seconds=phase.seconds,
        tokens_per_second=tokens / phase.seconds if phase.seconds else 0.0,
        steps=did.steps,
        prefill_steps=did.chunk_steps,
        step_seconds=(did.seconds - did.chunk_seconds) / plain if plain else None,
        mean_batch=did.rows / did.steps if did.steps else None,
        bytes_per_second=rate,
        memory_share=ceilings.of_memory(did.bytes, did.seconds)
        if rate and ceilings is not None and ceilings.read
        else None,
        drafted_tokens=journal.drafted_tokens,
        accepted_tokens=journal.accepted_tokens,
        searched_tokens=journal.searched_tokens,
    )
