"""The one error tree.

    PenstockError
    ├── RequestError            the caller's request is at fault (HTTP 4xx)
    │   ├── InvalidParameter    one field has a value that is not accepted
    │   ├── ContextLengthExceeded
    │   ├── RequestTooLarge     can never fit into the KV pool
    │   ├── NothingFits         no token can come next that all of the request's conditions allow
    │   └── ModelNotFound
    ├── StartupError            the server cannot start as configured (exit status 2)
    │   ├── ConfigurationError  an option, or a combination of options
    │   ├── ModelFileError      a file is missing, truncated or contradicts another
    │   ├── UnsupportedModel    an architecture or a value in config.json that is not implemented
    │   ├── TokenizerError      the tokenizer does not fit the model or cannot be used
    │   ├── InsufficientMemory
    │   └── AddressInUse
    ├── Overloaded              there is more to do than can be done in time (HTTP 503)
    │   ├── QueueFull           the queue is at its limit
    │   ├── MemoryPressure      the KV pool is promised to those who came before
    │   └── SloUnreachable      the first token would come too late
    ├── DeadlineExceeded        the time for the request ran out (HTTP 504)
    └── EngineError             the engine is at fault (HTTP 5xx)
        ├── EngineUnavailable   it is starting, stopping or has died
        ├── StepOutOfMemory     a GPU's memory ended in the request's step
        └── RowFailed           the computation of one request failed; the others go on

Every class has a stable `code`, an HTTP status, an exit status and says whether the same request may
succeed if it is sent again. Messages are one sentence with the cause and what would work.
"""

from typing import ClassVar, NamedTuple

from penstock.core.text_files import shown


class PenstockError(Exception):
    """Base of every error that Penstock raises on purpose."""

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    exit_status: ClassVar[int] = 1
    retryable: ClassVar[bool] = False
    # Seconds after which a client that may try again should, where that can be said.
    retry_after: int | None = None
    # Of its answer, beside those that all errors have.
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def __init__(self, message: str, *, param: str | None = None) -> None:
        # It may name a file.
        self.message = shown(message)
        super().__init__(self.message)
        self.param = param


class RequestError(PenstockError):
    """The request cannot be served as it is; sending it again changes nothing, unless it was one too many (429)."""

    code = "invalid_request"
    http_status = 400
    exit_status = 2


class InvalidParameter(RequestError):
    """One field of the request has a value that is not accepted; `param` names it."""

    code = "invalid_parameter"

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param}: {message}", param=param)


class Lengths(NamedTuple):
    """Tokens of a prompt, at least, of the output that it asks for, and of the context that is too short for both."""

    prompt: int
    output: int
    context: int


class ContextLengthExceeded(RequestError):
    """Prompt and requested output together are longer than the model's context.

    Attributes:
        lengths: how long they are, where that is known on this side of a process boundary.
    """

    code = "context_length_exceeded"
    lengths: Lengths | None = None

    def __init__(self, message: str, *, param: str | None = None, lengths: Lengths | None = None) -> None:
        super().__init__(message, param=param)
        self.lengths = lengths


class RequestTooLarge(RequestError):
    """The request needs more KV blocks than the whole pool has."""

    code = "request_too_large"


class NothingFits(RequestError):
    """No token can come next that the request's grammar, masks, biases, penalties and min_tokens allow together."""

    code = "nothing_fits"


class ModelNotFound(RequestError):
    """The request names a model that this server does not serve."""

    code = "model_not_found"
    http_status = 404


class StartupError(PenstockError):
    """The server cannot start as configured."""

    code = "startup_error"
    exit_status = 2


class ConfigurationError(StartupError):
    """An option has a value, or options have a combination, that cannot work."""

    code = "configuration_error"


class ModelFileError(StartupError):
    """A model file is missing, truncated, malformed, or contradicts the configuration."""

    code = "model_file_error"


class UnsupportedModel(StartupError):
    """The architecture, or a value in the model's configuration, is not implemented."""

    code = "unsupported_model"


class TokenizerError(StartupError):
    """The tokenizer cannot be used with this model."""

    code = "tokenizer_error"


class InsufficientMemory(StartupError):
    """The weights or the smallest useful KV pool do not fit into memory."""

    code = "insufficient_memory"


class AddressInUse(StartupError):
    """The address to listen on cannot be bound."""

    code = "address_in_use"


class Overloaded(PenstockError):
    """The request is refused since there is more to do than can be done in time; nothing was computed of it."""

    code = "overloaded"
    http_status = 503
    retryable = True

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFull(Overloaded):
    """The queue has the most requests, or tokens of prompts, that the server lets wait."""

    code = "queue_full"


class MemoryPressure(Overloaded):
    """What runs and waits is expected to fill the KV pool."""

    code = "memory_pressure"


class SloUnreachable(Overloaded):
    """The first token would come later than the server is to allow."""

    code = "slo_unreachable"


class DeadlineExceeded(PenstockError):
    """The request was not finished within its time; the work on it has ended."""

    code = "deadline_exceeded"
    http_status = 504
    retryable = True


class EngineError(PenstockError):
    """The engine could not serve a valid request."""

    code = "engine_error"


class EngineUnavailable(EngineError):
    """The engine is starting, stopping, or has died."""

    code = "engine_unavailable"
    http_status = 503
    retryable = True
    retry_after = 1


class StepOutOfMemory(EngineError):
    """A GPU's memory ended in a step; its requests end, and the engine goes on with the others."""

    code = "out_of_memory"
    http_status = 503
    retryable = True


class RowFailed(EngineError):
    """The computation of this request failed; requests beside it are not affected."""

    code = "row_failed"


def error_classes() -> dict[str, type[PenstockError]]:
    """Every class of the tree by its code, so that an error can cross a process boundary."""
    found: dict[str, type[PenstockError]] = {}
    pending: list[type[PenstockError]] = [PenstockError]
    while pending:
        cls = pending.pop()
        found[cls.code] = cls
        pending.extend(cls.__subclasses__())
    return found


def rebuild_error(code: str, message: str, param: str | None = None) -> PenstockError:
    """The error that `code` names, with `message` as it was on the other side of the boundary."""
    cls = error_classes().get(code, PenstockError)
    error = cls.__new__(cls)
    PenstockError.__init__(error, message, param=param)
    return error
