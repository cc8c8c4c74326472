"""What can be set of keys, projects and organisations, and what all three mean together."""

from decimal import Decimal
from typing import Any

import pytest

from penstock.access.tenants import Bounds, Permits
from penstock.core.errors import InvalidParameter
from penstock.tenancy.settings import Settings, cached_seconds, changed, permits_of


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"models": []}, "models: is empty"),
        ({"models": ["gpt-*"]}, "models: 'gpt-*' is a pattern"),
        ({"models": ["*"]}, "name each model"),
        ({"endpoints": []}, "endpoints: is empty"),
        ({"endpoints": ["/v1/files"]}, "endpoints: '/v1/files' is none; there are /v1/chat/completions"),
        ({"requests_per_minute": 0}, "requests_per_minute: is 0; leave it out, or give 1"),
        ({"tokens_per_minute": -5}, "tokens_per_minute: is -5"),
        ({"max_output_tokens": 10**13}, "max_output_tokens: is 10000000000000"),
        ({"budget_per_day": "-1"}, "budget_per_day: is -1; leave it out, or give more than 0"),
        ({"budget_per_month": 0}, "budget_per_month: is 0"),
        ({"budget_per_month": "NaN"}, "budget_per_month: is NaN"),
        ({"budget_per_month": 9_000_001}, "at most 9000000"),
        ({"budget_per_month": "0.0000000001"}, "9 digits behind the point"),
        ({"budget_per_month": "a lot"}, "budget_per_month: cannot be used"),
        ({"requests_per_minute": "many"}, "requests_per_minute: cannot be used"),
        ({"answer_cache_seconds": -1}, "answer_cache_seconds: is -1; leave it out, or give 0 to 2592000 seconds."),
        ({"answer_cache_seconds": 2592001}, "answer_cache_seconds: is 2592001"),
        ({"weight": 2.0}, "weight: is a project's"),
        ({"max_stored_bytes": 5}, "max_stored_bytes: is a project's"),
        ({"colour": "red"}, "colour: is no setting; there are models, endpoints"),
    ],
)
def test_what_cannot_be_set(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        changed(Settings(), fields)
    assert says in caught.value.message


def test_settings_are_changed_field_by_field() -> None:
    first = changed(Settings(), {"models": ["a", "b"], "budget_per_day": "2.50"})
    assert first == Settings(models=("a", "b"), budget_per_day=Decimal("2.50"))
    second = changed(first, {"models": None, "requests_per_minute": 5})
    assert second == Settings(budget_per_day=Decimal("2.50"), requests_per_minute=5)
    assert second.bounds == Bounds(requests_per_minute=5, budget_per_day=2_500_000_000)
    as_text = changed(Settings(), {"requests_per_minute": "7", "weight": "1.5"}, of_project=True, as_text=True)
    assert as_text == Settings(requests_per_minute=7, weight=1.5)
    with pytest.raises(InvalidParameter, match="weight: is 0, outside"):
        changed(Settings(), {"weight": 0.0}, of_project=True)


def test_answers_are_kept_where_a_level_lets_them_and_none_forbids_it() -> None:
    one, two, never = (Settings(answer_cache_seconds=seconds) for seconds in (60, 30, 0))
    assert cached_seconds([Settings(), Settings()]) == 0
    assert cached_seconds([Settings(), one, two]) == 30
    assert cached_seconds([never, one]) == 0


def test_all_levels_must_permit() -> None:
    key = Settings(models=("a", "b"), max_output_tokens=100)
    project = Settings(models=("b", "c"), max_context_tokens=1000, max_output_tokens=50)
    organisation = Settings(endpoints=("/v1/completions",))
    assert permits_of([key, project, organisation]) == Permits(
        models=frozenset("b"),
        endpoints=frozenset(["/v1/completions"]),
        max_context_tokens=1000,
        max_output_tokens=50,
    )
    assert permits_of([Settings(), Settings()]) == Permits()
    assert permits_of([Settings(models=("a",)), Settings(models=("b",))]).models == frozenset()
