"""A request's place in a trace (W3C Trace Context): who has asked, what replicas are told, and the gateway's spans.

A replica's spans are below those of the try that reached it, so that one trace has the whole way of a request.
"""

import random
import re
from collections.abc import Mapping

from penstock.gateway.ways import Try, Way
from penstock.observability.spans import TraceSpan

PARENT = b"traceparent"
_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
_NANOSECONDS = 1e9
# Outcomes that are not the client's.
_ERRORS = ("refused", "broken")


class Trace:
    """That of one request at a gateway that sends traces.

    Args:
        caller: the headers in which its client says to which trace it belongs.

    Attributes:
        caller: the same, where they can be read; else none.
        is_traced: whether its client traces it, or says nothing of that.
    """

    def __init__(self, caller: Mapping[str, str]) -> None:
        found = _HEADER.fullmatch(caller.get(PARENT.decode(), ""))
        trace = 0 if found is None or _is_none(found) else int(found[2], 16)
        self.is_traced = not trace or found is None or bool(int(found[4], 16) & _SAMPLED)
        self.caller = caller if trace else {}
        self._is_first = not trace
        self._trace = trace or _drawn(128)
        self._span = _drawn(64)
        self._tries: list[int] = []

    def next(self) -> bytes:
        """What the next replica is told of it: it belongs to a span of its own."""
        self._tries.append(_drawn(64))
        return b"00-%032x-%016x-01" % (self._trace, self._tries[-1])

    def span(self, way: Way) -> TraceSpan:
        """Those of the gateway, once the request has ended."""
        began = round(way.created * _NANOSECONDS)
        tries = [_of_try(each, began, own) for each, own in zip(way.tries, self._tries, strict=False)]
        outcome = way.outcome or "cancelled"
        return TraceSpan(
            f"POST {way.path}",
            began,
            began + round((way.seconds or 0.0) * _NANOSECONDS),
            {
                "http.request.method": "POST",
                "http.route": way.path,
                "url.path": way.path,
                "penstock.request.id": way.id,
                "penstock.outcome": outcome,
                "penstock.gateway.tries": len(way.tries),
                **({"penstock.tenant": way.tenant} if way.tenant else {}),
            },
            tuple(tries),
            kind="server",
            error=outcome if outcome in _ERRORS else None,
            id=self._span,
            trace=self._trace if self._is_first else None,
        )


def _is_none(found: re.Match[str]) -> bool:
    """Whether what has the form of the header names no span, or is of no version."""
    return found[1] == "ff" or (found[1] == "00" and found[5] is not None) or not int(found[3], 16)


def _of_try(each: Try, began: int, own: int) -> TraceSpan:
    at = began + round(each.at * _NANOSECONDS)
    return TraceSpan(
        "try",
        at,
        at + round((each.seconds or 0.0) * _NANOSECONDS),
        {
            "server.address": each.replica,
            "penstock.gateway.reason": each.reason,
            "penstock.gateway.expected_hit": each.hit,
            "penstock.gateway.ended": each.ended or "left",
        },
        kind="client",
        id=own,
    )


def _drawn(bits: int) -> int:
    """A number that is not 0, which identifies nothing."""
    return random.getrandbits(bits) or 1
