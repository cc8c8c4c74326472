"""Reading a request's body: only JSON, and never more than the limit."""

from starlette.requests import ClientDisconnect, Request

from penstock.core.errors import RequestError
from penstock.server.errors import BodyTooLarge, UnsupportedMediaType


async def read_json_body(request: Request, limit: int) -> bytes:
    """The body's bytes. Raises BodyTooLarge as soon as it is known to exceed `limit` bytes."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Browsers send other types to any local server without asking; requiring this one keeps foreign pages out.
    if kind != "application/json":
        raise UnsupportedMediaType("The body must be JSON; send the header 'Content-Type: application/json'.")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("Compressed bodies are not accepted; send the body as it is.")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and len(declared) < 20 and int(declared) > limit:
        raise _too_large(limit)
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            parts.append(part)
    except ClientDisconnect:
        raise RequestError("The connection was closed before the whole body had arrived.") from None
    return b"".join(parts)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is longer than the {limit} bytes that this server reads; send a shorter prompt.")
