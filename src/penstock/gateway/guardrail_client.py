"""Asks one guardrail over HTTP: a JSON object there, a JSON object back, in bounded time."""

import asyncio
import contextlib
import os
from typing import Literal

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.gateway.connection import Connection
from penstock.gateway.errors import ReplicaBroken
from penstock.gateway.exchange import Exchange
from penstock.gateway.guardrail_options import Guardrail
from penstock.gateway.pool import Pool, address_of

_GOOD = 200
# Of what it says; what it puts in the place of a request can be as long as that.
_MOST_BYTES = 32 * 1024 * 1024
MOST_REASON = 500


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a guardrail is asked.

    Attributes:
        id: the request's, as the gateway's log and `x-request-id` have it.
        when: "before" the request is sent to a replica, or "after" there is something of its answer.
        path, tenant, model: where it was asked, whose it is, and the model that it names.
        body: of the request.
        text: of the answer, so far.
        passed: characters of the text that have passed already.
        whole: whether the answer has come to its end.
        answer: the body of an answer that is no stream.
    """

    id: str
    when: Literal["before", "after"]
    path: str
    tenant: str
    model: str | None
    body: msgspec.Raw
    text: str | None = None
    passed: int | None = None
    whole: bool | None = None
    answer: msgspec.Raw | None = None


class Verdict(msgspec.Struct, frozen=True):
    """What a guardrail says.

    Attributes:
        reason: why it denies something, which the client is told.
        body: what takes the place of a request's body, or of an answer's that is no stream.
    """

    action: Literal["allow", "deny", "replace"]
    reason: str = ""
    body: msgspec.Raw = msgspec.Raw(b"")


class NoVerdict(Exception):
    """A guardrail has not said in time what may pass.

    Attributes:
        why: a clause.
        is_late: whether its time was over.
    """

    def __init__(self, why: str, *, is_late: bool = False) -> None:
        super().__init__(why)
        self.why, self.is_late = why, is_late


_decode = msgspec.json.Decoder(Verdict).decode


class GuardrailClient:
    """One guardrail, with connections that are kept open."""

    def __init__(self, options: Guardrail) -> None:
        """Raises ConfigurationError where its key is not in the environment."""
        self.options = options
        self._key = _key_of(options)
        self._pool = Pool(address_of(options.url), options.seconds)

    async def ask(self, question: Question) -> Verdict:
        """What it says. Raises NoVerdict."""
        seconds = self.options.seconds
        try:
            async with asyncio.timeout(seconds):
                status, content = await self._answer(msgspec.json.encode(question))
        except TimeoutError:
            raise NoVerdict(f"it says nothing in {seconds:g} s", is_late=True) from None
        except ReplicaBroken as error:
            raise NoVerdict(error.message) from None
        if status != _GOOD:
            raise NoVerdict(f"it answered with status {status}")
        try:
            verdict = _decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise NoVerdict(f"its answer cannot be read ({error})") from None
        if verdict.action == "replace" and not bytes(verdict.body).startswith(b"{"):
            raise NoVerdict("it wants to replace what passes, and gives no object as body")
        return verdict

    async def _answer(self, content: bytes) -> tuple[int, bytes]:
        address = self._pool.address
        lines = [
            b"POST %s HTTP/1.1" % (address.root.encode() or b"/"),
            b"host: " + address.authority.encode(),
            b"content-type: application/json",
            b"content-length: %d" % len(content),
            *([] if self._key is None else [b"authorization: Bearer " + self._key.encode()]),
            b"\r\n",
        ]
        head = b"\r\n".join(lines)
        connection, exchange = await self._pool.send(head, content)
        try:
            if connection.requests > 1:
                with contextlib.suppress(ReplicaBroken):
                    await exchange.head()
                if exchange.is_lost:
                    # The connection may have been closed as the question was on its way.
                    connection, exchange = await self._pool.send(head, content, fresh=True)
            return await _read(exchange)
        finally:
            _leave(connection, exchange)

    def close(self) -> None:
        """Close all connections to the guardrail."""
        self._pool.close()


async def _read(exchange: Exchange) -> tuple[int, bytes]:
    return (await exchange.head()).status, await exchange.body(_MOST_BYTES)


def _leave(connection: Connection, exchange: Exchange) -> None:
    if not exchange.whole:
        connection.close()


def _key_of(options: Guardrail) -> str | None:
    variable = options.key_variable
    key = None if variable is None else os.environ.get(variable)
    if variable is not None and not key:
        raise ConfigurationError(
            f"The variable {variable} is not in the environment; set it to the API key of the guardrail {options.name}."
        )
    return key
