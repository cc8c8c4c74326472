"""Refusals of those who may not ask, or ask too much at a time."""

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
    """This API key has the most requests under way that it may have."""

    code = "rate_limit_exceeded"
    http_status = 429
    retry_after = 1
    retryable = True
