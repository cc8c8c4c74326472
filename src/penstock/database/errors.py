"""What can be wrong with a database that is there."""

from penstock.core.errors import PenstockError


class DatabaseUnavailable(PenstockError):
    """It does not answer now; the same may work later."""

    code = "database_unavailable"
    http_status = 503
    retryable = True
    retry_after = 1
