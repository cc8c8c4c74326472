"""Refusals of those who may not ask, or ask too much at a time."""

from collections.abc import Sequence

from penstock.core.errors import RequestError


class InvalidApiKey(RequestError):
    """The request has no API key, or none that this server knows."""

    code = "invalid_api_key"
    http_status = 401


class NotForOthers(RequestError):
    """The request says for which tenant it is, which its API key may not, or says it in a way that cannot be read."""

    code = "not_for_others"
    http_status = 403


class TooManyRequests(RequestError):
    """This API key has the most under way, or has used the most, that it may."""

    code = "rate_limit_exceeded"
    http_status = 429
    retryable = True

    def __init__(self, message: str, *, retry_after: int = 1, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(message)
        self.retry_after, self.headers = retry_after, tuple(headers)


class LargerThanLimit(RequestError):
    """The request may take more than this API key may use at any time."""

    code = "larger_than_limit"
    http_status = 413


class BudgetExceeded(RequestError):
    """The request may cost more than what is left of a budget."""

    code = "budget_exceeded"
    http_status = 402


class NoPrice(RequestError):
    """Nothing says what the model costs, and money is counted here."""

    code = "no_price"
    http_status = 400


class NotPermitted(RequestError):
    """This API key may not ask for that."""

    code = "not_permitted"
    http_status = 403
