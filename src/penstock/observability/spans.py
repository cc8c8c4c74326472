"""The spans of a request's trace, made of its account and its explanation. Pure: it knows nothing of the exporter.

Names are those of OpenTelemetry's semantic conventions for HTTP servers and for generative AI where they have one, and
begin with `penstock.` where they have none. No text of a prompt or an answer is in any attribute, and of what clients
write into requests for themselves only the id (a short word): all else are numbers and words of the server's own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from penstock.observability.account import Account
from penstock.observability.explain.explanation import Explanation, Phase
from penstock.observability.metrics import Endpoint

Attribute = str | bool | int | float | Sequence[str]

_NANOSECONDS = 1e9
# Routes of requests over HTTP.
_ROUTES: dict[Endpoint, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "embeddings": "/v1/embeddings",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "translate": "/translate",
    "rerank": "/v1/rerank",
    "score": "/v1/score",
    "classify": "/v1/classify",
}
_OPERATIONS: dict[Endpoint, str] = {
    "completions": "text_completion",
    "chat": "chat",
    "embeddings": "embeddings",
    "messages": "chat",
    "responses": "chat",
    "translate": "text_completion",
    "rerank": "rerank",
    "score": "score",
    "classify": "classify",
}
# Outcomes that are the server's fault; a status of 500 and more is one too.
_ERRORS = ("failed", "timed_out")
_SERVER_ERROR = 500


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """One span, with those within it.

    Attributes:
        began, ended: nanoseconds in Unix time.
        kind: whether it is what a client of the server waited for, a request to another server, or something inside.
        error: the code with which it failed; None where it did not.
        id, trace: its own and its trace's, where others were told of them; else they are drawn.
    """

    name: str
    began: int
    ended: int
    attributes: Mapping[str, Attribute]
    children: tuple["TraceSpan", ...] = ()
    kind: Literal["server", "client", "internal"] = "internal"
    error: str | None = None
    id: int | None = None
    trace: int | None = None


@dataclass(frozen=True, slots=True)
class Serving:
    """What all requests of a server have in common.

    Attributes:
        scheme: of its addresses.
        wall_clock: nanoseconds of Unix time at the beginning of the monotonic clock.
    """

    scheme: str
    wall_clock: int = field(kw_only=True)

    def at(self, moment: float) -> int:
        """A moment on the monotonic clock in Unix time."""
        return self.wall_clock + round(moment * _NANOSECONDS)


def trace_of(account: Account, told: Explanation, model: str | None, serving: Serving) -> TraceSpan:
    """The tree of a request that has ended: the request, its phases, and what happened in them.

    Args:
        told: the account's explanation, as operators get it.
        model: under which name it is served; None where that is not known.
    """
    route, operation = _ROUTES[account.endpoint], _OPERATIONS[account.endpoint]
    began, ended = serving.at(account.arrived), serving.at(account.arrived + told.seconds)

    def within(first: int, last: int) -> Callable[[float, float], tuple[int, int]]:
        """Of a start and seconds, both since the arrival; what follows from rounding never leaves the bounds."""

        def bounds(start: float, seconds: float) -> tuple[int, int]:
            from_, to = serving.at(account.arrived + start), serving.at(account.arrived + start + seconds)
            return min(max(from_, first), last), min(max(to, first), last)

        return bounds

    children = list[TraceSpan]()
    for phase in told.timeline:
        first, last = within(began, ended)(phase.start, phase.seconds)
        inside = list[TraceSpan]()
        for part in phase.parts:
            # What began in a phase and outlasted it, as a stall may, happened in the request, and not in the phase.
            outlasts = part.start + part.seconds > phase.start + phase.seconds + 1 / _NANOSECONDS
            bounds = within(began, ended) if outlasts else within(first, last)
            span = TraceSpan(part.name, *bounds(part.start, part.seconds), _detail(part.detail))
            (children if outlasts else inside).append(span)
        children.append(TraceSpan(phase.name, first, last, _of_phase(phase, told), tuple(inside)))
    attributes = {**_generation(account, told, model, operation), **_verdict(account, told)}
    if not account.line:
        attributes |= _http(account, route, serving.scheme)
    failed = account.outcome in _ERRORS or (account.status or 0) >= _SERVER_ERROR
    return TraceSpan(
        f"{operation} {model or ''}".strip() if account.line else f"POST {route}",
        began,
        ended,
        attributes,
        tuple(sorted(children, key=lambda span: span.began)),
        kind="internal" if account.line else "server",
        error=(account.code or str(account.outcome)) if failed else None,
    )


def _http(account: Account, route: str, scheme: str) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        "http.request.method": "POST",
        "http.route": route,
        "url.path": route,
        "url.scheme": scheme,
    }
    # A client that has gone may not have got the head of an answer.
    if account.status is not None:
        attributes["http.response.status_code"] = account.status
    return attributes


def _generation(account: Account, told: Explanation, model: str | None, operation: str) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "penstock"}
    if account.code is not None:
        attributes["error.type"] = account.code
    # Where a request was not taken on, its further fields may not be what its client meant.
    if account.taken_on is None:
        return attributes
    if model is not None:
        attributes |= {"gen_ai.request.model": model, "gen_ai.response.model": model}
    if account.samples != 1:
        attributes["gen_ai.request.choice.count"] = account.samples
    if account.response_id is not None:
        attributes["gen_ai.response.id"] = account.response_id
    if account.finish_reasons:
        attributes["gen_ai.response.finish_reasons"] = tuple(account.finish_reasons)
    attributes["gen_ai.request.stream"] = account.stream
    if account.stream and account.ttft is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = account.ttft
    attributes["gen_ai.usage.input_tokens"] = account.prompt_tokens
    attributes["gen_ai.usage.output_tokens"] = told.output_tokens
    found = [each.prefix.found for each in account.journals if each.prefix is not None]
    if found:
        attributes["gen_ai.usage.cache_read.input_tokens"] = sum(found)
    return attributes


def _verdict(account: Account, told: Explanation) -> dict[str, Attribute]:
    verdict = told.verdict
    attributes: dict[str, Attribute] = {
        "penstock.request.id": account.id,
        "penstock.outcome": str(account.outcome),
        "penstock.verdict.cause": verdict.cause,
        "penstock.verdict.seconds": verdict.seconds,
        "penstock.verdict.sentence": verdict.sentence,
        **{f"penstock.cause.{cause.code}": cause.seconds for cause in told.causes},
    }
    more: dict[str, Attribute | None] = {
        "penstock.client_id": account.client_id,
        "penstock.tenant": account.tenant or None,
        "penstock.verdict.setting": verdict.setting,
        "penstock.queue_seconds": told.queue_seconds,
        "penstock.time_to_first_token": told.time_to_first_token,
        "penstock.missed": tuple(told.missed) or None,
        "penstock.prompts": told.prompts if told.prompts > 1 else None,
    }
    return attributes | _known(more)


def _of_phase(phase: Phase, told: Explanation) -> dict[str, Attribute]:
    more: dict[str, Attribute | None] = {}
    if phase.name == "prefill" and told.prefix is not None:
        more = {
            "penstock.prefix.looked_up": told.prefix.looked_up,
            "penstock.prefix.found": told.prefix.found,
            "penstock.prefix.missing": told.prefix.missing,
        }
    elif phase.name == "decode" and told.decode is not None:
        more = {
            "penstock.decode.tokens": told.decode.tokens,
            "penstock.decode.tokens_per_second": told.decode.tokens_per_second,
            "penstock.decode.steps": told.decode.steps,
            "penstock.decode.prefill_steps": told.decode.prefill_steps,
            "penstock.decode.mean_batch": told.decode.mean_batch,
        }
    return _detail(phase.detail) | _known(more)


def _detail(text: str) -> dict[str, Attribute]:
    return {"penstock.detail": text} if text else {}


def _known(attributes: Mapping[str, Attribute | None]) -> dict[str, Attribute]:
    return {name: value for name, value in attributes.items() if value is not None}
