"""What can be wrong with what is asked of tenants."""

from penstock.core.errors import PenstockError, RequestError


class NotThere(RequestError):
    """There is no organisation, project or key of this name."""

    code = "not_found"
    http_status = 404


class AlreadyThere(RequestError):
    """There is one of this name."""

    code = "already_exists"
    http_status = 409


class ProviderUnavailable(PenstockError):
    """The keys of an identity provider are not known yet; the same token may be taken later."""

    code = "identity_provider_unavailable"
    http_status = 503
    retryable = True
    retry_after = 1


class KeyRevoked(RequestError):
    """The API key that a request was asked with was revoked while it was answered."""

    code = "key_revoked"
    http_status = 401
