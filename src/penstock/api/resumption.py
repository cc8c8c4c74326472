"""A server's part in streams that another server can go on with; see `core/resumption.py`."""

import re
from collections.abc import Sequence

import msgspec
from starlette.requests import Request

from penstock.api.job import Job
from penstock.core.checks import check_integer
from penstock.core.errors import InvalidParameter
from penstock.core.request import BACKGROUND
from penstock.core.resumption import MARK, RESUME, TRACK, WAITED, Begun, Opening
from penstock.engine.interface import RequestOutput

_MOST_SEED = 2**64 - 1


_decode_begun = msgspec.json.Decoder(Begun).decode


def begun_of(request: Request, body: bytes) -> tuple[bytes, Begun | None]:
    """A request's body without what it says of the beginning of its stream, and that. Raises InvalidParameter."""
    given = header_of(request, RESUME)
    if given is None:
        return body, None
    name = RESUME.decode()
    if not given.isdigit() or not 0 < int(given) < len(body):
        raise InvalidParameter(name, f"must be the number of bytes at the end of the body, not {given[:20]!r}.")
    size = len(body) - int(given)
    try:
        begun = _decode_begun(body[size:])
    except msgspec.DecodeError as error:
        raise InvalidParameter(name, f"what is behind the body cannot be read: {error}.") from None
    check_integer("seed", begun.seed, 0, _MOST_SEED)
    return body[:size], begun


def waited_of(request: Request) -> float:
    """Seconds of its time that a request has used up before it came here. Raises InvalidParameter."""
    given = header_of(request, WAITED)
    if given is None:
        return 0.0
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", given):
        raise InvalidParameter(WAITED.decode(), f"must be a number of seconds, not {given[:20]!r}.")
    return float(given)


def classed(request: Request, job: Job) -> Job:
    """The job in the class that a gateway says. Raises InvalidParameter."""
    given = header_of(request, BACKGROUND)
    if given not in (None, b"1", "1"):
        raise InvalidParameter(BACKGROUND.decode(), f"must be 1, not {given[:20]!r}.")
    return job if given is None else job.in_background()


def resumed(job: Job, begun: Begun) -> Job:
    """The job that goes on with a stream. Raises InvalidParameter where it is none that can be gone on with."""
    if not can_be_tracked(job):
        raise InvalidParameter(
            RESUME.decode(), "only a stream of one answer, with a whole context and no log probabilities, can go on."
        )
    params = [msgspec.structs.replace(job.params[0], seed=begun.seed)]
    return msgspec.structs.replace(job, params=params, begun=begun)


def told(request: Request, job: Job) -> Job:
    """The job whose answer tells a gateway what it is to know."""
    if header_of(request, TRACK) is None:
        return job
    return msgspec.structs.replace(job, counted=True, tracked=can_be_tracked(job))


def can_be_tracked(job: Job) -> bool:
    """Whether another server could go on with it."""
    # Where tokens were dropped, another server does not give the same again.
    if (
        not job.stream
        or job.pooling is not None
        or job.kv_policy is not None
        or len(job.prompts) != 1
        or len(job.params) != 1
    ):
        return False
    params = job.params[0]
    # What beam search finds comes whole.
    return (
        params.n == 1
        and params.beam is None
        and params.logprobs is None
        and params.prompt_logprobs is None
        and job.echo is None
    )


def first_comment(response_id: str, created: int, seed: int) -> bytes:
    """What a stream begins with."""
    return MARK + msgspec.json.encode(Opening(response_id, created, seed)) + b"\n\n"


def comment(output: RequestOutput) -> bytes:
    """What follows the events of an output, unless it is the last: its tokens."""
    [delta] = output.deltas
    return b"" if delta.ending is not None else MARK + _joined(delta.token_ids) + b"\n\n"


def header_of(request: Request, wanted: bytes) -> str | None:
    """A header of a request; None where it has none such."""
    return next((value.decode("latin-1") for name, value in request.scope["headers"] if name == wanted), None)


def _joined(tokens: Sequence[int]) -> bytes:
    return ",".join(map(str, tokens)).encode()
