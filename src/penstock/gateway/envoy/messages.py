"""What Envoy and an endpoint picker say to each other, as the rest of the gateway has it.

The names of headers and metadata are those of the Gateway API Inference Extension (proposal 004, "Endpoint Picker
Protocol").
"""

from collections.abc import Iterable, Iterator, Sequence

from starlette.responses import Response

from penstock.gateway.envoy.protocol import (
    OVERWRITE_IF_EXISTS_OR_ADD,
    Message,
    ProcessingResponse,
)
from penstock.gateway.exchange import Headers

DESTINATION = "x-gateway-destination-endpoint"
_SERVED = "x-gateway-destination-endpoint-served"
_SUBSET = "x-gateway-destination-endpoint-subset"
_BALANCER, _HINT = "envoy.lb", "envoy.lb.subset_hint"
# What Envoy itself says of where an answer came from, where its `response_attributes` ask for it.
_UPSTREAM = "upstream.address"
Headed = Iterable[tuple[str, str]]
# Bytes of one piece of a body; Envoy takes at most 64 KiB.
_PIECE = 60 * 1024


def endpoint(host: str, port: int) -> str:
    """An address and a port as Envoy and gRPC write them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def headers_of(told: Message) -> Headers:
    """The headers of a message, with HTTP/2's pseudo-headers."""
    return [(each.key.lower().encode(), each.raw_value or each.value.encode()) for each in told.headers.headers]


def subset_of(message: Message) -> frozenset[str] | None:
    """The only endpoints that may be picked, where Envoy says that some only may be."""
    hint = _found(message.metadata_context.filter_metadata, _HINT, _SUBSET)
    return None if hint is None else frozenset(_texts(hint))


def served_by(message: Message) -> str | None:
    """The endpoint that has answered, where Envoy says which."""
    told = _found(message.metadata_context.filter_metadata, _BALANCER, _SERVED)
    for each in message.attributes:
        told = told or _found([each], each.key, _UPSTREAM)
    return None if told is None else next(iter(_texts(told)), None)


def _found(entries: Iterable[Message], key: str, field: str) -> Message | None:
    """The value of a field in the struct with a key."""
    return next((each.value.fields[field] for each in entries if each.key == key and field in each.value.fields), None)


def _texts(value: Message) -> Iterator[str]:
    """The endpoints in a text with commas, or in a list of such texts."""
    for each in value.list_value.values:
        yield from _texts(each)
    yield from (each.strip() for each in value.string_value.split(",") if each.strip())


def picked(endpoints: Sequence[str], length: int | None) -> Message:
    """The request goes to the first endpoint, or to the next ones where that cannot be reached.

    `length` is that of its body, which Envoy takes the header of away; None: it has none.
    """
    answer = ProcessingResponse()
    headers = [] if length is None else [("content-length", str(length))]
    _goes_to(answer, answer.request_headers.response.header_mutation, endpoints, headers)
    return answer


def picked_with_body(endpoints: Sequence[str], body: bytes | None) -> Message:
    """The same where Envoy keeps the body until it is answered; None: the body stays as it is."""
    answer = ProcessingResponse()
    common = answer.request_body.response
    _goes_to(answer, common.header_mutation, endpoints, [] if body is None else [("content-length", str(len(body)))])
    if body is not None:
        common.body_mutation.body = body
    return answer


def _goes_to(answer: Message, mutation: Message, endpoints: Sequence[str], headers: Headed) -> None:
    joined = ",".join(endpoints)
    _set(mutation, [(DESTINATION, joined), *headers])
    answer.dynamic_metadata.fields[_BALANCER].struct_value.fields[DESTINATION].string_value = joined


def _set(mutation: Message, headers: Headed) -> None:
    """Have headers in the places of those with their names."""
    for name, value in headers:
        option = mutation.set_headers.add(append_action=OVERWRITE_IF_EXISTS_OR_ADD)
        option.header.key, option.header.raw_value = name, value.encode("latin-1")


def request_body(body: bytes, *, ends: bool) -> Iterator[Message]:
    """The body of a request, in pieces; `ends`: no trailers follow."""
    starts = range(0, max(1, len(body)), _PIECE)
    for start in starts:
        answer = ProcessingResponse()
        piece = answer.request_body.response.body_mutation.streamed_response
        piece.body, piece.end_of_stream = body[start : start + _PIECE], ends and start == starts[-1]
        yield answer


def response_body(piece: Message, *, streamed: bool) -> Message:
    """A piece of an answer, as it came; where bodies are not `streamed`, Envoy has it still."""
    answer = ProcessingResponse()
    answer.response_body.response.SetInParent()
    if streamed:
        passed = answer.response_body.response.body_mutation.streamed_response
        passed.body, passed.end_of_stream = piece.body, piece.end_of_stream
    return answer


def headers(*, of_request: bool) -> Message:
    """Headers of a request, or of its answer, which go on as they came."""
    answer = ProcessingResponse()
    (answer.request_headers if of_request else answer.response_headers).response.SetInParent()
    return answer


def trailers(*, of_request: bool) -> Message:
    """Trailers of a request, or of its answer, which go on as they came."""
    answer = ProcessingResponse()
    (answer.request_trailers if of_request else answer.response_trailers).SetInParent()
    return answer


def refused(response: Response) -> Message:
    """The request is answered with this, and goes nowhere."""
    answer = ProcessingResponse()
    answer.immediate_response.status.code = response.status_code
    _set(answer.immediate_response.headers, (each for each in response.headers.items() if each[0] != "content-length"))
    answer.immediate_response.body = bytes(response.body)
    return answer
