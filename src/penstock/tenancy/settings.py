"""What can be set of a key, a project and an organisation, and what all three together let a request do."""

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal

import msgspec

from penstock.access.tenants import MOST_CACHED_SECONDS, OWN, Bounds, Permits
from penstock.core.errors import InvalidParameter
from penstock.core.request import WEIGHTS

# Where a gateway answers from a replica; elsewhere nothing is computed.
ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/v1/responses/input_tokens",
    *("/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score", "/v1/classify", "/classify", "/predict", "/embed"),
    "/translate",
    "/tokenize",
    "/detokenize",
)
BILLIONTHS = 10**9
# Of money: a store of limits counts billionths of it in numbers of 53 bits.
_MOST_MONEY = 9_000_000
_MOST_COUNT = 10**12
_COUNTS = (
    *("max_context_tokens", "max_output_tokens", "max_concurrent_requests"),
    *("requests_per_minute", "tokens_per_minute", "max_stored_bytes"),
)
_BUDGETS = ("budget_per_day", "budget_per_month")
_WILD = frozenset("*?[]")


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Of one key, project or organisation. All that is set at any of the three holds; None sets nothing.

    Attributes:
        models: that may be asked for, by name.
        endpoints: that may be asked, by path.
        max_context_tokens: of a prompt and its answer together.
        max_output_tokens: of an answer.
        max_concurrent_requests: that are under way.
        requests_per_minute, tokens_per_minute: in any 60 seconds.
        budget_per_day, budget_per_month: money, in UTC, in the currency of prices.
        privacy_classes: of the providers that may see requests, beside own machines, which are of the class "own".
        priority_class: "background": requests are computed only where no others want to be; it holds at any level.
        weight: of a project, of the engine beside others; 1 without.
        max_stored_bytes: of a project, that replicas keep for it.
        answer_cache_seconds: for which a gateway may give the same answer again; 0: never, whatever is set elsewhere.
    """

    models: tuple[str, ...] | None = None
    endpoints: tuple[str, ...] | None = None
    max_context_tokens: int | None = None
    max_output_tokens: int | None = None
    max_concurrent_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    budget_per_day: Decimal | None = None
    budget_per_month: Decimal | None = None
    privacy_classes: tuple[str, ...] | None = None
    priority_class: Literal["normal", "background"] | None = None
    weight: float | None = None
    max_stored_bytes: int | None = None
    answer_cache_seconds: int | None = None

    def check(self, *, of_project: bool = False) -> "Settings":
        """Itself. Raises InvalidParameter for what cannot be."""
        _check_models(self.models)
        _check_endpoints(self.endpoints)
        _check_privacy(self.privacy_classes)
        for name in _COUNTS:
            count = getattr(self, name)
            if count is not None and not 1 <= count <= _MOST_COUNT:
                raise InvalidParameter(name, f"is {count}; leave it out, or give 1 to {_MOST_COUNT}.")
        for name in _BUDGETS:
            _check_budget(name, getattr(self, name))
        seconds = self.answer_cache_seconds
        if seconds is not None and not 0 <= seconds <= MOST_CACHED_SECONDS:
            raise InvalidParameter(
                "answer_cache_seconds", f"is {seconds}; leave it out, or give 0 to {MOST_CACHED_SECONDS} seconds."
            )
        least, most = WEIGHTS
        if self.weight is not None and not (math.isfinite(self.weight) and least <= self.weight <= most):
            raise InvalidParameter("weight", f"is {self.weight:g}, outside {least:g}..{most:g}.")
        for name in ("weight", "max_stored_bytes"):
            if getattr(self, name) is not None and not of_project:
                raise InvalidParameter(name, "is a project's, whose keys share it; set it there.")
        return self

    @property
    def bounds(self) -> Bounds:
        """What of it is counted."""
        return Bounds(
            max_concurrent_requests=self.max_concurrent_requests,
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            budget_per_day=_billionths(self.budget_per_day),
            budget_per_month=_billionths(self.budget_per_month),
        )


def changed(settings: Settings, fields: dict[str, Any], *, of_project: bool = False, as_text: bool = False) -> Settings:
    """Settings with other fields; None takes one back. Raises InvalidParameter.

    Args:
        as_text: whether numbers may be given as texts.
    """
    unknown = sorted(set(fields) - set(Settings.__struct_fields__))
    if unknown:
        known = ", ".join(Settings.__struct_fields__)
        raise InvalidParameter(unknown[0][:80], f"is no setting; there are {known}.")
    merged = {name: getattr(settings, name) for name in Settings.__struct_fields__} | fields
    given = {name: value for name, value in merged.items() if value is not None}
    try:
        return msgspec.convert(given, Settings, strict=not as_text).check(of_project=of_project)
    except msgspec.ValidationError as error:
        said, _, path = str(error).partition(" - at `$.")
        raise InvalidParameter(path.rstrip("`") or "settings", f"cannot be used: {said}.") from None


def permits_of(levels: Sequence[Settings]) -> Permits:
    """What all levels let a request do."""

    def common(name: str) -> frozenset[str] | None:
        given = [frozenset(value) for each in levels if (value := getattr(each, name)) is not None]
        return frozenset.intersection(*given) if given else None

    def least(name: str) -> int | None:
        return min((value for each in levels if (value := getattr(each, name)) is not None), default=None)

    return Permits(
        models=common("models"),
        endpoints=common("endpoints"),
        max_context_tokens=least("max_context_tokens"),
        max_output_tokens=least("max_output_tokens"),
        privacy_classes=common("privacy_classes"),
        background=any(each.priority_class == "background" for each in levels),
    )


def cached_seconds(levels: Sequence[Settings]) -> int:
    """How long an answer may be given again, by all levels that say something of it; 0 where none does."""
    given = [each.answer_cache_seconds for each in levels if each.answer_cache_seconds is not None]
    return min(given, default=0)


def _check_models(models: tuple[str, ...] | None) -> None:
    if models is None:
        return
    if not models:
        raise InvalidParameter("models", "is empty, so that nothing could be asked for; leave it out for all models.")
    for model in models:
        if _WILD & set(model):
            raise InvalidParameter(
                "models", f"{model[:80]!r} is a pattern, which would let models in that come later; name each model."
            )


def _check_endpoints(endpoints: tuple[str, ...] | None) -> None:
    if endpoints is None:
        return
    if not endpoints:
        raise InvalidParameter("endpoints", "is empty, so that nothing could be asked; leave it out for all.")
    for endpoint in endpoints:
        if endpoint not in ENDPOINTS:
            raise InvalidParameter("endpoints", f"{endpoint[:80]!r} is none; there are {', '.join(ENDPOINTS)}.")


def _check_privacy(classes: tuple[str, ...] | None) -> None:
    if classes is not None and OWN not in classes:
        raise InvalidParameter(
            "privacy_classes", f"must have {OWN!r}, for own machines see all requests; beside it, those of providers."
        )


def _check_budget(name: str, budget: Decimal | None) -> None:
    if budget is None:
        return
    if not budget.is_finite() or not 0 < budget <= _MOST_MONEY:
        raise InvalidParameter(name, f"is {budget}; leave it out, or give more than 0 and at most {_MOST_MONEY}.")
    if budget * BILLIONTHS % 1:
        raise InvalidParameter(name, f"is {budget}; it can have 9 digits behind the point.")


def _billionths(money: Decimal | None) -> int | None:
    return None if money is None else int(money * BILLIONTHS)
