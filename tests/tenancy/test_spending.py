"""What was used by the day is what the ledger's entries add up to."""

from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from penstock.core.errors import InvalidParameter
from penstock.core.usage import Used
from penstock.database.connection import Database
from penstock.database.tables import ledger
from penstock.metering.prices import money
from penstock.tenancy.entries import Entry
from penstock.tenancy.ledger import enter
from penstock.tenancy.spending import Spending, spending

# Trillionths, of which a database's integer would not hold a few.
_LARGEST = 9 * 10**18
NOON = datetime(2026, 11, 28, 12, tzinfo=UTC).timestamp()


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    found = []
    for number in range(draw(st.integers(0, 12))):
        project = draw(st.sampled_from(["acme.web", "acme.search", "zoo.web"]))
        found.append(
            Entry(
                id=f"{number}",
                at=NOON + draw(st.floats(-3 * 86400, 3 * 86400)),
                organisation=project.partition(".")[0],
                project=project,
                key="key_0",
                model=draw(st.sampled_from(["a", "b", "<b>", ""])),
                replica="r",
                outcome="answered",
                used=Used(*draw(st.tuples(*[st.integers(0, 10**6)] * 3))),
                is_estimated=False,
                cost=draw(st.none() | st.integers(0, _LARGEST)),
            )
        )
    return found


def told_by_hand(wanted: list[Entry]) -> dict[tuple[str, str], tuple[int, int, int]]:
    """Requests, tokens and trillionths by day and model."""
    sums: dict[tuple[str, str], tuple[int, int, int]] = defaultdict(lambda: (0, 0, 0))
    for each in wanted:
        day = datetime.fromtimestamp(each.at, UTC).strftime("%Y-%m-%d")
        requests, tokens, cost = sums[day, each.model]
        tokens += each.used.prompt + each.used.output
        sums[day, each.model] = requests + 1, tokens, cost + (each.cost or 0)
    return dict(sums)


def check(found: Spending, wanted: list[Entry], most: int) -> None:
    by_hand = told_by_hand(wanted)
    assert found.requests == len(wanted)
    assert found.cost == sum((money(each.cost or 0) for each in wanted), Decimal(0))
    named = {each.name for each in found.totals if each.name is not None}
    assert len(named) == min(most, len({model for _, model in by_hand}))
    costs = [each.cost for each in found.totals if each.name is not None]
    assert costs == sorted(costs, reverse=True)
    summed: dict[tuple[str, str | None], tuple[int, int, Decimal]] = defaultdict(lambda: (0, 0, Decimal(0)))
    for (day, model), (requests, tokens, cost) in by_hand.items():
        name = model if model in named else None
        one, two, three = summed[day, name]
        summed[day, name] = one + requests, two + tokens, three + money(cost)
    assert {
        (each.day, each.name): (each.requests, each.prompt_tokens + each.output_tokens, each.cost)
        for each in found.days
    } == summed
    assert [each.day for each in found.days] == sorted(each.day or "" for each in found.days)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kept=entries(), days=st.tuples(st.integers(-4, 0), st.integers(0, 4)), most=st.integers(1, 4))
def test_it_is_what_the_entries_add_up_to(
    database: Database, kept: list[Entry], days: tuple[int, int], most: int
) -> None:
    with database.begin() as connection:
        connection.execute(delete(ledger))
    enter(database, kept)
    first, last = (date(2026, 11, 28) + timedelta(days=each) for each in days)
    wanted = [each for each in kept if first <= datetime.fromtimestamp(each.at, UTC).date() <= last]
    check(spending(database, f"{first}", f"{last}", most=most), wanted, most)
    for of in ("acme", "zoo.web"):
        theirs = [each for each in wanted if of in (each.organisation, each.project)]
        check(spending(database, f"{first}", f"{last}", of=of, most=most), theirs, most)
    by_project = spending(database, f"{first}", f"{last}", "project")
    assert {each.name for each in by_project.totals} == {each.project for each in wanted}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (("2026-02-30", "2026-03-01"), "first: is '2026-02-30'"),
        (("2026-1-1", "2026-03-01"), "first: is '2026-1-1'"),
        (("2026-03-02", "2026-03-01"), "last: is 2026-03-01; it must be 0 to 399 days"),
        (("2025-01-01", "2026-03-01"), "last: is 2026-03-01"),
        (("2026-03-01", "2026-03-01", "colour"), "by: is 'colour'; there are organisation, project, model"),
        (("2026-03-01", "2026-03-01", "model", None, 51), "most: is 51"),
    ],
)
def test_what_is_asked_wrongly(asked: tuple[str, ...], says: str) -> None:
    database: Database = None  # type: ignore[assignment]
    with pytest.raises(InvalidParameter, match=says):
        spending(database, *asked)  # type: ignore[arg-type]
