"""Providers as replicas: when a request goes out to one, and its answer in the client's dialect."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from math import ceil, inf, isfinite
from typing import Protocol

from penstock.access.allowances import Allowances
from penstock.api.parsing import in_terms_of
from penstock.core.errors import PenstockError
from penstock.core.usage import USED, Used
from penstock.gateway.errors import ProviderFailed, ProviderRefused, ProviderUnavailable, ReplicaBroken
from penstock.gateway.exchange import Exchange, Head, Headers
from penstock.gateway.meters import DAY, in_billionths, meters_of
from penstock.gateway.pool import address_of
from penstock.http.answers import ignored_header
from penstock.http.error_bodies import ErrorForm, error_body
from penstock.metering.meters import Charge, Meter, Refusal, Reservation
from penstock.metering.prices import Price
from penstock.providers.answering import Answering
from penstock.providers.anthropic import AnthropicMessages
from penstock.providers.api import ProviderApi, bound_of
from penstock.providers.errors import BrokenAnswer
from penstock.providers.events import EventReader
from penstock.providers.openai import OpenAIChat
from penstock.providers.options import LITELLM, ROOTS, ProviderModel, ProviderOptions
from penstock.providers.outgoing import Outgoing
from penstock.providers.refusals import is_busy, is_operators, said_in

logger = logging.getLogger("penstock.gateway")

# Of an error that is read.
_MOST_ERROR_BYTES = 64 * 1024
# Of an answer, with all that is around its text.
_MOST_BYTES = 256 * 1024 * 1024
# Seconds for which a provider is not asked that says that it has too much to do, and not for how long.
_REST_SECONDS = 5.0
_MOST_REST_SECONDS = 300.0
_GOOD = 200
_STREAM: Headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class Answer(Protocol):
    """An answer as it comes, from a replica or a provider."""

    async def head(self) -> Head:
        """The beginning, once it is there. Raises ReplicaBroken."""

    async def piece(self) -> bytes:
        """What came since this was asked before, at least a byte; nothing at the end. Raises ReplicaBroken."""


class Hosted:
    """What makes a replica of a provider.

    Attributes:
        options: what the operator says of it.
        name: that answers and accounts have.
        models: by the names that clients ask for.
        address: of its API; None where LiteLLM's library sends requests.
    """

    def __init__(self, options: ProviderOptions, key: str | None) -> None:
        self.options, self._key = options, key or ""
        root = options.url or ROOTS.get(options.api)
        address = None if root is None else address_of(root)
        self.address = None if options.api == LITELLM else address
        self.name = f"provider/{options.name}"
        self.models: dict[str, ProviderModel] = {each.model: each for each in options.model}
        self._api = _api(options)
        self._bounds = options.bounds
        self._rests_until = -inf

    def check(self, asked: Outgoing) -> None:
        """Raise InvalidParameter where its API cannot do what a request asks for."""
        with in_terms_of(asked.names):
            self._api.check(asked.chat)

    def rests(self, now: float) -> bool:
        """Whether it is not to be asked now, since it had no room, or its bounds have none."""
        return now < self._rests_until

    def rest(self, seconds: float) -> None:
        """It is not to be asked for a while."""
        self._rests_until = max(self._rests_until, _now() + min(max(seconds, 0.0), _MOST_REST_SECONDS))

    def price(self, model: str) -> Price:
        """Of a model that it has."""
        return self.models[model].price

    def request(self, asked: Outgoing) -> Sequence[bytes]:
        """What it is asked: head and body, or what the body is for LiteLLM's library."""
        model = self.models[asked.model]
        body = self._api.body(asked.chat, model.at or model.model, self.options.max_output_tokens)
        if self.address is None:
            return (body,)
        headers = [
            (b"host", self.address.authority.encode()),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"accept", b"text/event-stream"),
            *self._api.headers(self._key),
        ]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        path = f"{self.address.root}{self._api.path}"
        return b"POST %s HTTP/1.1\r\n%b\r\n" % (path.encode(), lines), body

    def full(self) -> ProviderUnavailable:
        """What is told where its bounds have no room."""
        now = _now()
        if not self.rests(now):
            return ProviderUnavailable(
                f"This request may use more than is left of what may be asked of {self.name} for now; give it a "
                "smaller max_tokens, or try again later.",
                retry_after=ceil(_REST_SECONDS),
            )
        after = max(1, ceil(self._rests_until - now))
        return ProviderUnavailable(
            f"What may be asked of {self.name} for now is used up; try again in {after} s.", retry_after=after
        )

    @contextlib.asynccontextmanager
    async def reserved(self, allowances: Allowances, asked: Outgoing, answering: Answering) -> AsyncIterator[bool]:
        """Reserve what a request may use of its bounds, and settle what it has used; whether there was room."""
        reservation = await self._reserve(allowances, asked, answering.used.prompt)
        if reservation is None:
            yield False
            return
        try:
            yield True
        except asyncio.CancelledError:
            # It may have been sent.
            if answering.reached is None:
                answering.reached = True
            raise
        finally:
            self._settle(allowances, reservation, asked.model, answering)

    async def _reserve(self, allowances: Allowances, asked: Outgoing, prompt: int) -> Reservation | None:
        """None where they have no room; it rests until they may have, unless it is only this request that is large."""
        most = max(0, bound_of(asked.chat, self.options.max_output_tokens)) * (asked.chat.n or 1)
        cost = in_billionths(self.price(asked.model).cost(Used(prompt, 0, most)))
        amounts = {"requests": 1, "tokens": prompt + most, "money": cost}
        charges = [
            Charge(meter, min(amounts[meter.unit], meter.most) if meter.unit == "tokens" else amounts[meter.unit])
            for meter in meters_of(self.name, self._bounds, int(time.time()) // DAY)
        ]
        found = await allowances.reserve(self.name, charges)
        if isinstance(found, Refusal):
            amount = next(amount for meter, amount in charges if meter.name == found.meter.name)
            if found.used >= found.meter.most or 2 * amount <= found.meter.most:
                self.rest(found.seconds if found.seconds != inf else _REST_SECONDS)
                logger.info("%s has no room left in its %s for now", self.name, _what(found.meter))
            else:
                logger.info("%s has no room for a large request in its %s for now", self.name, _what(found.meter))
            return None
        return found

    def _settle(self, allowances: Allowances, reservation: Reservation, model: str, answering: Answering) -> None:
        used = answering.used if answering.reached else Used(0, 0, 0)
        cost = in_billionths(self.price(model).cost(used))
        amounts = {"requests": 1, "tokens": used.prompt + used.output, "money": cost}
        allowances.settle(self.name, reservation, [amounts[meter.unit] for meter, _ in reservation.charges])

    def answer(self, exchange: Exchange, asked: Outgoing, form: ErrorForm, answering: Answering) -> "HostedAnswer":
        """Its answer, in the client's dialect."""
        streams, answering.reached = bool(asked.chat.stream), True
        return HostedAnswer(self, exchange, self._api, form, answering, streams=streams, ignored=asked.ignored)


class Refused:
    """An answer that says why there is none."""

    def __init__(self, error: PenstockError, form: ErrorForm) -> None:
        self._body = error_body(error, form)
        after = [] if error.retry_after is None else [(b"retry-after", b"%d" % error.retry_after)]
        self._head = Head(form.status(error), [(b"content-type", b"application/json"), *after])

    async def head(self) -> Head:
        """Its status, by which it is seen whether others may answer."""
        return self._head

    async def piece(self) -> bytes:
        """The error, and then nothing."""
        body, self._body = self._body, b""
        return body


class HostedAnswer:
    """Reads a provider's answer, and writes it as a replica would.

    Attributes:
        answering: what writes it.
    """

    def __init__(
        self,
        hosted: Hosted,
        exchange: Exchange,
        api: ProviderApi,
        form: ErrorForm,
        answering: Answering,
        *,
        streams: bool,
        ignored: Sequence[str] = (),
    ) -> None:
        self._hosted, self._exchange, self._form = hosted, exchange, form
        self.answering = answering
        self._refused: Refused | None = None
        self._streams = streams
        self._events, self._reader = EventReader(), api.reader()
        self._head: Head | None = None
        self._body: bytes | None = None
        self._ended = False
        self._broken: ReplicaBroken | None = None
        self._bytes = 0
        self._ignored = [(name.encode(), value.encode()) for name, value in ignored_header(ignored).items()]

    async def head(self) -> Head:
        """The beginning; of an answer that is wanted whole, once all of it has come. Raises ReplicaBroken."""
        if self._head is not None:
            return self._head
        head = await self._exchange.head()
        if head.status != _GOOD:
            self.answering.reached = False
            self._refused = Refused(self._refusal(head, await self._exchange.body(_MOST_ERROR_BYTES)), self._form)
            self._head = await self._refused.head()
        elif not any(name == b"content-type" and b"event-stream" in value for name, value in head.headers):
            raise ReplicaBroken("it does not stream its answer")
        elif self._streams:
            # It is known without that what it has used.
            self._head = Head(_GOOD, [*_STREAM, (USED, b"events"), *self._ignored])
        else:
            body = b""
            while not self._ended:
                body = await self._more()
            self._body = body
            length = (b"content-length", b"%d" % len(body))
            told = (length, self.answering.used.header, *self._ignored)
            self._head = Head(_GOOD, [(b"content-type", b"application/json"), *told])
        return self._head

    async def piece(self) -> bytes:
        """What came since this was asked before, at least a byte; nothing at the end. Raises ReplicaBroken."""
        await self.head()
        if self._refused is not None:
            return await self._refused.piece()
        if self._body is not None:
            body, self._body, self._ended = self._body, None, True
            return body
        while not self._ended:
            if written := await self._more():
                return written
        return b""

    async def _more(self) -> bytes:
        """What the client gets of the next piece, or of the end. Raises ReplicaBroken."""
        piece, written = await self._next(), b""
        try:
            if not piece:
                if not self._reader.complete:
                    raise BrokenAnswer("it ended its answer before that was complete")
                self._ended = True
                return self.answering.end()
            for data in self._events.take(piece):
                written += self.answering.take(self._reader.read(data))
        except (BrokenAnswer, ValueError) as error:
            # What came before it is told first.
            self._broken = ReplicaBroken(str(error))
            if not written:
                raise self._broken from None
        return written

    async def _next(self) -> bytes:
        if self._broken is not None:
            raise self._broken
        try:
            piece = await self._exchange.piece()
        except ReplicaBroken:
            if not (self._reader.complete and self.answering.complete):
                raise
            # Nothing is missing from an answer whose connection is lost behind its end.
            return b""
        self._bytes += len(piece)
        if self._bytes > _MOST_BYTES:
            raise ReplicaBroken(f"its answer is longer than {_MOST_BYTES} bytes")
        return piece

    def _refusal(self, head: Head, body: bytes) -> PenstockError:
        """What a client is told where it does not answer."""
        name, said = self._hosted.name, said_in(body)
        logger.warning("%s answered with status %d: %s", name, head.status, said.message)
        if is_busy(head.status, said):
            seconds = _retry_after(head.headers)
            self._hosted.rest(seconds)
            after = max(1, ceil(seconds))
            return ProviderUnavailable(f"{name} has too much to do; try again in {after} s.", retry_after=after)
        if is_operators(head.status, said):
            return ProviderFailed(f"{name} cannot answer (status {head.status}); the gateway's log says why.")
        return ProviderRefused(f"{name} does not take this request: {said.message}")


def _api(options: ProviderOptions) -> ProviderApi:
    if options.api == "anthropic":
        return AnthropicMessages()
    return OpenAIChat(options.bound_field, tells_usage=options.stream_usage)


def _what(meter: Meter) -> str:
    return f"budget of the {meter.period}" if meter.unit == "money" else f"{meter.unit} of a minute"


def _retry_after(headers: Sequence[tuple[bytes, bytes]]) -> float:
    """Seconds after which one may come back; dates are not read."""
    for name, value in headers:
        if name == b"retry-after":
            with contextlib.suppress(ValueError):
                if isfinite(seconds := float(value)):
                    return min(max(seconds, 0.0), _MOST_REST_SECONDS)
    return _REST_SECONDS


def _now() -> float:
    return asyncio.get_running_loop().time()
