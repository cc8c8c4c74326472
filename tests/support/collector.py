"""What stands in for an OpenTelemetry collector: it takes traces over OTLP/HTTP, and shows them."""

import contextlib
import gzip
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from support.waiting import until


@dataclass(frozen=True)
class Received:
    """A span as it came, its ids in hexadecimal."""

    trace: str
    id: str
    parent: str
    name: str
    kind: int
    began: int
    ended: int
    status: int
    message: str
    attributes: dict[str, Any]
    state: str = ""


@dataclass
class Collector:
    """Everything that came.

    Attributes:
        status: what the next messages are answered with.
    """

    url: str = ""
    status: int = 200
    spans: list[Received] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)

    def take(self, message: bytes) -> None:
        """Read a message. A test that looks meanwhile sees all of its spans, or none."""
        self.raw.append(message)
        spans = list[Received]()
        for resource in ExportTraceServiceRequest.FromString(message).resource_spans:
            self.resources.append(_read(resource.resource.attributes))
            for scope in resource.scope_spans:
                spans += map(_received, scope.spans)
        self.spans += spans

    def roots(self) -> list[Received]:
        """Of each request the span that has no parent here."""
        ids = {span.id for span in self.spans}
        return [span for span in self.spans if span.parent not in ids]

    def children(self, parent: Received) -> list[Received]:
        """Right below it, in order."""
        return sorted((span for span in self.spans if span.parent == parent.id), key=lambda span: span.began)

    def below(self, root: Received) -> list[Received]:
        """All below it."""
        return [each for child in self.children(root) for each in (child, *self.below(child))]

    def root_of(self, request_id: str) -> Received:
        """The span of a request, once it has come."""

        def found() -> list[Received]:
            return [each for each in self.roots() if each.attributes.get("penstock.request.id") == request_id]

        self.wait(lambda: bool(found()))
        (root,) = found()
        return root

    def wait(self, condition: Callable[[], bool]) -> None:
        """Until something has come."""
        until(condition, lambda: [span.attributes for span in self.roots()])


@contextlib.contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    """A collector while the block runs."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                message = gzip.decompress(message)
            collector.paths.append(self.path)
            collector.headers.append({name.lower(): value for name, value in self.headers.items()})
            if collector.status == 200:
                collector.take(message)
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.daemon_threads = True
        collector.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def _received(span: Span) -> Received:
    return Received(
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.name,
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code,
        span.status.message,
        _read(span.attributes),
        span.trace_state,
    )


def _read(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, str(kind))
