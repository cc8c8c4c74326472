"""What clients are told of what is stored: that it is not there, not theirs, too much, or that the disk fails."""

from penstock.core.errors import PenstockError, RequestError


class StorageOff(RequestError):
    """The endpoint needs storage, which this server has none of."""

    code = "storage_off"
    http_status = 404


class StorageUnavailable(PenstockError):
    """What is to be kept cannot be written, or read, at the moment. Whatever needs no storage is served."""

    code = "storage_unavailable"
    http_status = 503
    retryable = True


class StorageFull(StorageUnavailable):
    """The server's disk is full, or all that it keeps has reached its bound; the message says what helps."""

    code = "storage_full"
    http_status = 507


class StorageFailed(StorageUnavailable):
    """The disk or a database did not do what it should."""

    code = "storage_failed"


class StorageRefused(StorageFailed):
    """A database did not take what it was asked: the same would fail again."""

    code = "storage_refused"


class DatabaseAway(StorageFailed):
    """The server of a database does not answer."""

    code = "storage_away"


class StorageLimitReached(RequestError):
    """There is no room for more of what a tenant keeps; the message says what to delete."""

    code = "storage_limit_reached"
    http_status = 413


class TooManyBatches(RequestError):
    """The tenant has the most unfinished batches that it may have."""

    code = "too_many_batches"
    http_status = 429
    retryable = True


class StoredFileNotFound(RequestError):
    """No file has this id (any more)."""

    code = "file_not_found"
    http_status = 404


class StoredFileInUse(RequestError):
    """A batch that has not ended still reads this file."""

    code = "file_in_use"
    http_status = 409


class BatchNotFound(RequestError):
    """No batch has this id (any more)."""

    code = "batch_not_found"
    http_status = 404


class BatchTaken(Exception):
    """Another server runs the batch by now, which no client is told."""


class BatchHasEnded(RequestError):
    """There is nothing left to cancel."""

    code = "batch_has_ended"
    http_status = 409


class PreviousResponseNotFound(RequestError):
    """A response goes on from one that is not stored (any more)."""

    code = "previous_response_not_found"
