"""Sends one request to replicas and providers, and opens what each of them answers."""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec
from starlette.types import Scope

from penstock.core.handover import HANDOVER, OFFER, Offer
from penstock.core.resumption import Begun
from penstock.gateway.asked import TOKEN_BYTES
from penstock.gateway.attempt import Attempt, Provided
from penstock.gateway.dispatch import Dispatch, Wanted
from penstock.gateway.errors import ReplicaBroken
from penstock.gateway.exchange import Exchange
from penstock.gateway.headers import request_head
from penstock.gateway.hosted import Answer, Refused
from penstock.gateway.pool import Sending
from penstock.gateway.replicas import Replica
from penstock.gateway.trace import Trace
from penstock.http.error_bodies import ErrorForm
from penstock.providers.answering import Answering


class Asking:
    """Of one request.

    Args:
        form: of errors, in the client's dialect.
        seconds: since the request has come.
        may_move: whether another replica can answer instead of one.

    Attributes:
        begun: what its client has got of another replica's stream.
        offer: where what another replica has computed of its prompt is; None: nowhere.
        offered_by: that replica.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        scope: Scope,
        form: ErrorForm,
        seconds: Callable[[], float],
        may_move: Callable[[Replica, Wanted], bool],
        trace: Trace | None,
    ) -> None:
        self._dispatch, self._scope, self._form = dispatch, scope, form
        self._seconds, self._may_move, self._trace = seconds, may_move, trace
        self.begun: Begun | None = None
        self.offer: Offer | None = None
        self.offered_by: Replica | None = None

    @contextlib.asynccontextmanager
    async def answer(self, attempt: Attempt, wanted: Wanted, body: bytes) -> AsyncIterator[Answer]:
        """A replica's answer, or a provider's in the dialect of the client; left where the block ends before it does.

        Raises ReplicaBroken.
        """
        replica, hosted, abroad = attempt.replica, attempt.replica.hosted, wanted.abroad
        if hosted is None or abroad is None:
            async with self._exchange(replica, wanted, self._parts(attempt, wanted, body)) as exchange:
                yield exchange
            return
        request = abroad.request
        answering = Answering(request, wanted.tokens, self._counter(request.model))
        async with hosted.reserved(self._dispatch.limits.allowances, request, answering) as has_room:
            if not has_room:
                yield Refused(hosted.full(), self._form)
                return
            # From now on it may cost something, whatever becomes of it.
            attempt.provided = Provided(answering, hosted.price(request.model))
            async with self._exchange(replica, wanted, hosted.request(request)) as exchange:
                yield hosted.answer(exchange, request, self._form, answering)

    def _counter(self, model: str) -> Callable[[str], int]:
        """Counts the tokens of a text, by the model's tokenizer where that is here, else by the text's bytes."""
        reader = self._dispatch.named.get(model)
        return reader.count if reader is not None else lambda text: -(-len(text.encode()) // TOKEN_BYTES)

    def _parts(self, attempt: Attempt, wanted: Wanted, body: bytes) -> Sequence[bytes]:
        """The request as an own machine gets it."""
        further = [(HANDOVER, b"1")] if attempt.hands_over else []
        if self.offer is not None and self.offered_by is not None and not attempt.hands_over:
            # Where another one answers than was thought of, it may be one that gives other bits.
            takes = self._dispatch.handing.takes(self.offered_by, attempt.replica)
            further = [(OFFER, self.offer.value)] if takes else []
        begun = b"" if self.begun is None else msgspec.json.encode(self.begun)
        trace = self._trace.next() if self._trace is not None and self._trace.is_traced else None
        length, keyed = len(body) + len(begun), self._dispatch.keyed
        waited = None if wanted.seconds is None else self._seconds()
        head = request_head(
            self._scope, attempt.replica, length, len(begun), keyed=keyed, trace=trace, waited=waited, further=further
        )
        return (head, body, begun) if begun else (head, body)

    @contextlib.asynccontextmanager
    async def _exchange(self, replica: Replica, wanted: Wanted, parts: Sequence[bytes]) -> AsyncIterator[Exchange]:
        connection, exchange = await self._send(replica, wanted, parts)
        try:
            if connection.requests > 1:
                with contextlib.suppress(ReplicaBroken):
                    await exchange.head()
                if exchange.is_lost:
                    # The connection may have been closed as the request was on its way.
                    replica.under_way.pop(exchange, None)
                    connection, exchange = await self._send(replica, wanted, parts, fresh=True)
            yield exchange
        finally:
            replica.under_way.pop(exchange, None)
            if not exchange.whole:
                connection.close()

    async def _send(
        self, replica: Replica, wanted: Wanted, parts: Sequence[bytes], *, fresh: bool = False
    ) -> tuple[Sending, Exchange]:
        connection, exchange = await replica.sender.send(*parts, fresh=fresh)
        exchange.may_move = lambda: self._may_move(replica, wanted)
        replica.under_way[exchange] = None
        return connection, exchange
