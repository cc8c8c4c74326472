"""Answers Envoy's questions over gRPC (`envoy.service.ext_proc.v3.ExternalProcessor`)."""

import contextlib
from collections.abc import AsyncIterator

import grpc

from penstock.core.errors import ConfigurationError
from penstock.gateway.app import MAX_BODY_BYTES
from penstock.gateway.dispatch import Dispatch
from penstock.gateway.envoy.messages import endpoint
from penstock.gateway.envoy.picking import Picking
from penstock.gateway.envoy.protocol import METHOD, SERVICE, Message, ProcessingRequest, ProcessingResponse
from penstock.http.body import BodyRoom
from penstock.http.error_bodies import Dialects

# Of one Envoy at a time, and what a message has beside a body.
_MOST_REQUESTS, _REST_BYTES = 100_000, 1 << 20


class Picker:
    """Says for each request of an Envoy to which replica it goes."""

    def __init__(self, dispatch: Dispatch, dialects: Dialects) -> None:
        self._dispatch, self._dialects = dispatch, dialects
        self._room = BodyRoom()

    async def process(self, asked: AsyncIterator[Message], _context: object) -> AsyncIterator[Message]:
        """Answer all that Envoy says of one request, until it is done with it."""
        picking = Picking(self._dispatch, self._dialects, self._room)
        try:
            async for message in asked:
                for answer in await picking.take(message):
                    yield answer
                if picking.is_refused:
                    return
        finally:
            picking.end()


@contextlib.asynccontextmanager
async def picking(picker: Picker, host: str, port: int, drain_seconds: float) -> AsyncIterator[int]:
    """Listen for Envoy while the block runs, on the port that is told; port 0 is any free one.

    At its end no new requests are taken, and those under way have some seconds to finish. Raises ConfigurationError
    where the port cannot be had.
    """
    options = [
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", _MOST_REQUESTS),
        # A body may come whole.
        ("grpc.max_receive_message_length", MAX_BODY_BYTES + _REST_BYTES),
    ]
    server = grpc.aio.server(options=options)
    method = grpc.stream_stream_rpc_method_handler(
        picker.process,
        request_deserializer=ProcessingRequest.FromString,
        response_serializer=ProcessingResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),))
    try:
        bound = server.add_insecure_port(endpoint(host, port))
    except RuntimeError:
        raise ConfigurationError(
            f"Envoy cannot be listened for on {host}:{port}: it is no address of this machine, or another program "
            "has the port."
        ) from None
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(drain_seconds)
