"""Accounts of requests that no server has served, with every landmark chosen."""

from typing import Any

from penstock.core.facts import WAITS, StepTotals, Wait
from penstock.engine.journal import ComputedChunk, Journal, Mark
from penstock.observability.account import Account

# When the request arrives, on the monotonic clock.
ARRIVED = 1000.0


def totals(**sums: Any) -> StepTotals:
    """Sums of steps; waits by their names, other seconds and counts by theirs."""
    held = tuple(sums.pop(wait, 0.0) for wait in WAITS)
    return StepTotals(held=held, **sums)


def mark(after: float, did: StepTotals | None = None) -> Mark:
    """A moment so many seconds after the arrival, by when engines had done so much."""
    return Mark(ARRIVED + after, did or StepTotals())


def chunk(after: float, seconds: float, start: int, tokens: int, beside: tuple[int, int] = (0, 0)) -> ComputedChunk:
    """A step that computed `tokens` of the prompt, beside others' tokens and decoding rows."""
    return ComputedChunk(ARRIVED + after, seconds, start, tokens, *beside)


def make_account(journals: list[Journal] | None = None, ended: float | None = 10.0, **fields: Any) -> Account:
    """A request whose body was read at once, and which was sent its outputs until its end."""
    given: dict[str, Any] = {
        "received": ARRIVED,
        "taken_on": ARRIVED,
        "prompt_tokens": 100,
        "body_bytes": 500,
        **fields,
    }
    account = Account("req_1", "completions", given.pop("tenant", ""), ARRIVED, 1.7e9, journals=journals or [], **given)
    if ended is not None:
        account.ended, account.outcome = ARRIVED + ended, given.get("outcome", "completed")
    return account


def make_journal(
    submitted: float = 0.0,
    admitted: Mark | None = None,
    first_token: Mark | None = None,
    finished: Mark | None = None,
    **fields: Any,
) -> Journal:
    """What an engine did with a prompt of 100 tokens."""
    journal = Journal(100, mark(submitted), admitted=admitted, first_token=first_token, finished=finished)
    for name, value in fields.items():
        setattr(journal, name, value)
    return journal


def waited(wait: Wait, seconds: float, **others: Any) -> StepTotals:
    """Steps of `seconds` in all, in which somebody waited for this."""
    return totals(**{wait: seconds, "steps": 10, "execute": seconds, **others})
