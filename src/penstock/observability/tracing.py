"""Traces of requests for an OpenTelemetry collector: made and sent by a thread of their own, or dropped.

The server hands over what has ended, which costs a look at the caller's trace and a place in a queue.
OpenTelemetry's packages are an extra (`penstock[otel]`), and imported when a server is told to send traces.
"""

import importlib.util
import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock import __version__
from penstock.core.config import Reason
from penstock.core.errors import ConfigurationError
from penstock.observability.spans import Serving, TraceSpan

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan

logger = logging.getLogger("penstock.tracing")

_PATH = "/v1/traces"
# OpenTelemetry's packages heed it whatever they are told.
_OFF = "OTEL_SDK_DISABLED"
# More than any span has; given, so that the environment is not asked.
_MOST_ATTRIBUTES = 256
# Requests that wait to be exported: what a collector that restarts needs, and a few megabytes.
MOST_WAITING = 1024
# Requests in one message: encoding them takes two or three milliseconds in which streams wait.
_BATCH = 8
# Ended requests wait this long for others, so that messages are few.
_GATHER_SECONDS = 0.5
# Between two requests of a batch, so that the event loop gets to run.
_PAUSE_SECONDS = 0.0005
# For one message, retries included; for all that is left when the server ends.
_EXPORT_SECONDS = 10.0
FLUSH_SECONDS = 2.0
_END_SECONDS = 0.5
# Between two lines of the log about traces that were dropped.
_LINE_SECONDS = 60.0


def check_endpoint(asked: str | None) -> str | None:
    """The collector's address. Raises ConfigurationError where it is none, or where the extra is not installed."""
    if asked is None:
        return None
    try:
        parts = urlsplit(asked)
        port_fits = parts.port != 0
    except ValueError:
        port_fits = False
    if not port_fits or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(
            f"--otlp-endpoint {asked!r} is no address of a collector; give one such as http://localhost:4318."
        )
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ConfigurationError(
            "--otlp-endpoint has more than scheme, host, port and path; secrets belong into the environment variable "
            "OTEL_EXPORTER_OTLP_HEADERS."
        )
    if parts.path.rstrip("/").endswith(_PATH):
        raise ConfigurationError(
            f"--otlp-endpoint ends in {_PATH}, which is added to it; give what stands before, such as "
            "http://localhost:4318."
        )
    if not is_installed():
        raise ConfigurationError(
            "--otlp-endpoint needs OpenTelemetry, which is not installed: pip install 'penstock[otel]'."
        )
    if os.environ.get(_OFF, "").strip().lower() == "true":
        raise ConfigurationError(f"--otlp-endpoint asks for traces, and {_OFF} turns them off; leave out one of them.")
    return asked.rstrip("/")


def is_installed() -> bool:
    """Whether the packages of the extra are there."""
    try:
        return all(
            importlib.util.find_spec(name) is not None
            for name in ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")
        )
    except ModuleNotFoundError:
        return False


def reason_of(endpoint: str | None) -> Reason:
    """The setting, and why it has its value."""
    if endpoint is None:
        return Reason("traces", "none", "--otlp-endpoint names a collector that they are sent to")
    return Reason("traces", f"sent to {endpoint}{_PATH}", "as asked")


@dataclass(frozen=True, slots=True)
class _Ended:
    """A request that has ended, and how its trace is made."""

    make: Callable[[Serving], TraceSpan]
    caller: "Context"


class Tracing:
    """Makes one trace, or one part of its caller's, of each request, and sends it to a collector.

    What a collector does not take, or not fast enough, is dropped and counted; the server never waits for it.

    Attributes:
        outcomes: requests by what became of their traces.
    """

    def __init__(self, endpoint: str, scheme: str = "http", service: str = "penstock") -> None:
        """Send to the collector at `endpoint`, as `check_endpoint` has it.

        Args:
            scheme: of the server's own addresses.
            service: by which collectors tell programs apart.
        """
        # Here, since a server that sends no traces need not wait for them.
        from opentelemetry.exporter.otlp.proto.http import Compression
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        made: list[ReadableSpan] = []

        class Gathered(SpanProcessor):
            def on_end(self, span: "ReadableSpan") -> None:
                made.append(span)

        class Ids(RandomIdGenerator):
            """Those that others were told, and else random ones."""

            span: int | None = None
            trace: int | None = None

            def generate_span_id(self) -> int:
                return super().generate_span_id() if self.span is None else self.span

            def generate_trace_id(self) -> int:
                return super().generate_trace_id() if self.trace is None else self.trace

        # The two clocks are compared once: all spans of a process are on one axis, whatever is done to the time of day.
        self._serving = Serving(scheme, wall_clock=time.time_ns() - time.monotonic_ns())
        self._made = made
        resource = Resource(
            {
                "service.name": service,
                "service.version": __version__,
                "service.instance.id": str(uuid.uuid4()),
            }
        )
        # Whether a request is traced has been decided before it comes here.
        limits = SpanLimits(max_span_attributes=_MOST_ATTRIBUTES, max_span_attribute_length=SpanLimits.UNSET)
        self._ids = Ids()
        provider = TracerProvider(
            ALWAYS_ON, resource, shutdown_on_exit=False, span_limits=limits, id_generator=self._ids
        )
        provider.add_span_processor(Gathered())
        self._tracer = provider.get_tracer("penstock", __version__)
        self._propagator = TraceContextTextMapPropagator()
        # Secrets are read from the environment by the exporter itself; the rest of it is not asked.
        self._exporter = OTLPSpanExporter(
            endpoint + _PATH, timeout=_EXPORT_SECONDS, compression=Compression.NoCompression
        )
        self._troubles = _Troubles()
        self._waiting: deque[_Ended] = deque()
        self._some = threading.Event()
        self._closing, self._late = threading.Event(), threading.Event()
        self._next_line = 0.0
        self._told = 0
        self.outcomes = {"exported": 0, "queue_full": 0, "failed": 0}
        self._thread = threading.Thread(target=self._run, name="tracing", daemon=True)
        self._thread.start()

    def ended(self, caller_headers: Mapping[str, str], make: Callable[[Serving], TraceSpan]) -> None:
        """A request has ended: its trace is made, unless its caller does not trace what it belongs to.

        Args:
            caller_headers: in which its client says to which trace it belongs.
            make: its spans, made by another thread.
        """
        caller = self._propagator.extract(caller_headers)
        if not _is_traced(caller):
            return
        if len(self._waiting) >= MOST_WAITING or self._closing.is_set():
            self.outcomes["queue_full"] += 1
            return
        self._waiting.append(_Ended(make, caller))
        self._some.set()

    def close(self) -> None:
        """Send what is left, but not for long."""
        self._closing.set()
        self._some.set()
        self._thread.join(FLUSH_SECONDS)
        self._late.set()
        # Ends the wait for another attempt, if there is one; an answer that does not come is not waited for.
        self._exporter.shutdown()
        self._thread.join(_END_SECONDS)
        if not self._thread.is_alive():
            self._troubles.close()

    def _run(self) -> None:
        while not (self._closing.is_set() and not self._waiting):
            self._some.wait()
            self._some.clear()
            self._closing.wait(_GATHER_SECONDS)
            while self._waiting and not self._late.is_set():
                self._export([self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))])
            if self._late.is_set():
                self.outcomes["failed"] += len(self._waiting)
                self._waiting.clear()
                self._tell_of_dropped()

    def _export(self, batch: list[_Ended]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._made.clear()
        self._troubles.cause = None
        try:
            for ended in batch:
                self._record(ended.make(self._serving), ended.caller)
                time.sleep(_PAUSE_SECONDS)
            sent = self._exporter.export(self._made) is SpanExportResult.SUCCESS
        except Exception as error:
            sent, self._troubles.cause = False, f"{type(error).__name__}: {error}"
        self.outcomes["exported" if sent else "failed"] += len(batch)
        self._tell_of_dropped()

    def _record(self, span: TraceSpan, parent: "Context") -> None:
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        kind = SpanKind[span.kind.upper()]
        self._ids.span, self._ids.trace = span.id, span.trace
        made = self._tracer.start_span(span.name, parent, kind, span.attributes, start_time=span.began)
        if span.error is not None:
            made.set_status(StatusCode.ERROR, span.error)
        if span.children:
            within = set_span_in_context(made, parent)
            for child in span.children:
                self._record(child, within)
        made.end(span.ended)

    def _tell_of_dropped(self) -> None:
        """One line a minute, however many they are."""
        dropped, now = self.outcomes["failed"] + self.outcomes["queue_full"], time.monotonic()
        if dropped == self._told or now < self._next_line:
            return
        cause = self._troubles.cause or "The collector takes them too slowly."
        logger.warning("Traces of %d requests were dropped: %s", dropped - self._told, cause)
        self._told, self._next_line = dropped, now + _LINE_SECONDS


def _is_traced(caller: "Context") -> bool:
    """Whether a request's caller traces it, or there is none."""
    from opentelemetry.trace import get_current_span

    context = get_current_span(caller).get_span_context()
    return not context.is_valid or context.trace_flags.sampled


class _Troubles(logging.Handler):
    """Takes what OpenTelemetry's packages write about each failure. The log gets one line a minute about them.

    Attributes:
        cause: what was written first since it was None; what follows tells of further attempts.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.cause: str | None = None
        self._logger = logging.getLogger("opentelemetry")
        self._logger.addHandler(self)
        self._propagated, self._logger.propagate = self._logger.propagate, False

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what it says."""
        self.cause = self.cause or record.getMessage()

    def close(self) -> None:
        """Let others have it again."""
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagated
        super().close()
