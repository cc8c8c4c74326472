"""One request on its way to a replica, and its answer back as it comes."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable

from msgspec.structs import replace
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from penstock.access.tenants import tenant_of
from penstock.core.errors import Overloaded, PenstockError, RequestError
from penstock.core.handover import Offer
from penstock.core.request import BACKGROUND_PRIORITY
from penstock.core.usage import Used
from penstock.gateway.admitting import admitted
from penstock.gateway.answer_cache import Look
from penstock.gateway.asked import Asked
from penstock.gateway.asking import Asking
from penstock.gateway.attempt import Attempt, Provided
from penstock.gateway.dispatch import Dispatch, Wanted
from penstock.gateway.dividing import divided
from penstock.gateway.errors import GuardrailUnavailable, ReplicaBroken, broken
from penstock.gateway.exchange import Head
from penstock.gateway.handing import PATHS, offer_of
from penstock.gateway.headers import in_background, is_counted, is_line, is_tracked, returned, session_named, streams
from penstock.gateway.held_answer import HeldAnswer
from penstock.gateway.hosted import Answer
from penstock.gateway.judge import judged
from penstock.gateway.kept import PREVIOUS
from penstock.gateway.limits import NO_ANSWERS, NO_TOKENS, Spending
from penstock.gateway.permits import bounded, check_permitted
from penstock.gateway.race import Opened, Race
from penstock.gateway.replicas import Replica
from penstock.gateway.rules import may_get, with_model
from penstock.gateway.trace import Trace
from penstock.gateway.track import Track, WholeEvents, begun_in
from penstock.gateway.trials import TENANT
from penstock.gateway.used import UsageReader
from penstock.gateway.ways import Way
from penstock.http.body import disconnected
from penstock.http.error_bodies import Dialects, error_response
from penstock.http.errors import as_penstock_error
from penstock.http.request_ids import caller_of, client_id_of
from penstock.metering.prices import money
from penstock.observability.gateway_definitions import Outcome
from penstock.observability.request_ids import REQUEST_ID
from penstock.tenancy.entries import entry_of

logger = logging.getLogger("penstock.gateway")

_GOOD = 200
_FAULTS = 500
# How often a stream goes on elsewhere: a request that is the reason why replicas break is not taken to all of them.
_MOST_MOVES = 3
# Until one that was too busy to go on with a stream is asked again.
_BUSY_SECONDS = 0.25
# Makes copies of a request that has named a model.
Copied = Callable[[Scope, str | None, Asked, bytes], None]


class Passed:
    """One request on its way.

    Attributes:
        key: the id of the key that it was asked with.
        way: what became of it so far.
    """

    def __init__(self, dispatch: Dispatch, dialects: Dialects, scope: Scope, copied: Copied | None) -> None:
        """`copied` is told of each request that was admitted, by the model that it has named; None: of none."""
        self._dispatch, self._copied = dispatch, copied
        self._scope = scope
        self._dialect = dialects.at(scope["path"])
        self._form = self._dialect.errors
        self._started = self._streams = self._whole = False
        # Replicas that were asked; of a stream that another one is to go on with, since there was more of it.
        self._tried: list[int] = []
        self._track: Track | None = None
        self._events: Track | WholeEvents | None = None
        self._moves = 0
        # What it has reserved of its tenant's limits; what its answer says of what it has used.
        self._spending: Spending | None = None
        self._usage: UsageReader | None = None
        self._expected, self._model = 0, ""
        # The model that it has named, where a split gave it another one; the status of its answer.
        self._split: str | None = None
        self._status = 0
        # What the answer cache had; whether its answer comes from there.
        self._look: Look | None = None
        self._hit = False
        # What holds its answer until guardrails let it pass; None where none looks at it.
        self._held: HeldAnswer | None = None
        # Whether it was granted that it is sent again; when a replica that was to go on was too busy first.
        self._granted = False
        self._busy_since: float | None = None
        request = Request(scope)
        self._tenant = tenant_of(request)
        self.key = self._tenant.key
        self.way = Way(REQUEST_ID.get() or "", scope["path"], self._tenant.name, client_id_of(request), time.time(), [])
        self._trace = None if self._dispatch.tracing is None else Trace(caller_of(request))
        self._arrived = asyncio.get_running_loop().time()
        self._outcome: Outcome = "cancelled"
        self._asking = Asking(self._dispatch, scope, self._form, lambda: self._seconds, self._may_move, self._trace)
        # The attempt that is heard.
        self._last: Attempt | None = None
        self._work: asyncio.Task[None] | None = None
        self._cause: PenstockError | None = None
        # The class of the error that it has ended with.
        self._code = ""

    def end_with(self, error: PenstockError) -> None:
        """End it with an error, in its stream where that has begun."""
        self._cause = error
        if self._work is not None:
            self._work.cancel()

    async def run(self, body: bytes, asked: Asked, receive: Receive, send: Send) -> None:
        """Until the answer is complete, or the client has gone, which its replica learns at once."""
        self._form = self._dialect.errors_of(body)
        work = self._work = asyncio.create_task(self._pass(body, asked, receive, send))
        gone = asyncio.ensure_future(disconnected(receive))
        gone.add_done_callback(lambda _: self._leave())
        try:
            # Of an error that ends it, the client learns by the connection's end.
            with contextlib.suppress(asyncio.CancelledError, PenstockError):
                await work
        finally:
            gone.cancel()
            self._end()

    def _end(self) -> None:
        """Note what became of it, and what it has used."""
        if self._look is not None:
            self._look.end()
        if self._spending is not None:
            self._settle(self._spending)
        figures = self._dispatch.figures
        (figures.copies if self._tenant.name == TENANT else figures.requests)[self._outcome] += 1
        if self._split is not None and self._outcome in ("answered", "broken", "refused"):
            self._dispatch.splits.ended(self._split, failed=self._outcome != "answered" or self._status >= _FAULTS)
        self.way.outcome, self.way.seconds = self._outcome, self._seconds
        if self._trace is not None and self._dispatch.tracing is not None:
            trace, way = self._trace, self.way
            self._dispatch.tracing.ended(trace.caller, lambda _: trace.span(way))
        self._log()

    def _settle(self, spending: Spending) -> None:
        """Count what it has used, and enter it into the ledger."""
        used, tries = self._used, self.way.tries
        provided = self._provided
        price = None if provided is None else provided.price
        sent = bool(tries) or self._hit
        cost = spending.settle(used, sent=sent, answered=self._outcome == "answered", price=price)
        if not sent:
            return
        self.way.used, self.way.cost = used, None if cost is None else f"{money(cost):f}"
        # A client can name any model; those that are not served have no series.
        model = self._model if self._model in self._dispatch.replicas.models else ""
        self._dispatch.figures.settled(self._tenant.name, model, used or Used(0, 0, 0), cost)
        if self._dispatch.ledger is None:
            return
        told = self._usage is not None and (self._usage.used is not None or self._told is not None)
        told = told if provided is None else not provided.answering.is_estimated
        self._dispatch.ledger.add(
            entry_of(
                self._tenant,
                self._model,
                tries[-1].replica if tries else "",
                self._outcome,
                used,
                cost,
                is_estimated=used is not None and not told,
                is_batch=is_line(self._scope),
            )
        )

    @property
    def _provided(self) -> Provided | None:
        """What the provider has told that was asked last; None where a machine was."""
        return None if self._last is None else self._last.provided

    @property
    def _told(self) -> Used | None:
        """What a stream's comments say of what it has used."""
        return None if self._events is None else self._events.used

    def _leave(self) -> None:
        """The client does not wait for the answer any more."""
        if self._cause is None and self._work is not None:
            self._work.cancel()

    @property
    def _output(self) -> int | None:
        """Tokens of the answer so far; None where nothing says how many there are."""
        if self._track is None:
            return None
        return self._track.count + (0 if self._asking.begun is None else len(self._asking.begun.tokens))

    @property
    def _used(self) -> Used | None:
        """By the answer, as far as its client has got it; None where there is none. A provider counts all of it."""
        path = self._scope["path"]
        if path in NO_TOKENS:
            return None
        if self._provided is not None:
            answering = self._provided.answering
            if answering.has_begun or (answering.reached and self._outcome == "cancelled"):
                return answering.used
        if self._usage is None:
            # A client that leaves before its answer has had its prompt computed.
            left = self._outcome == "cancelled" and bool(self.way.tries) and not self._started
            return Used(self._expected, 0, 0) if left else None
        told = self._usage.used if self._told is None else self._told
        if told is None:
            guessed = 0 if path in NO_ANSWERS else self._usage.guessed
            return Used(self._expected, 0, guessed if self._output is None else self._output)
        # Of a stream that was left, it is told what it had used at its beginning.
        return replace(told, output=max(told.output, self._output or 0))

    @property
    def _seconds(self) -> float:
        """Since it has come."""
        return asyncio.get_running_loop().time() - self._arrived

    def _log(self) -> None:
        logger.info("%s", self.way.sentence(from_cache=self._hit, code=self._code))

    async def _pass(self, body: bytes, asked: Asked, receive: Receive, send: Send) -> None:
        try:
            if self._cause is not None:
                # The end has come while the body did.
                raise self._cause
            await self._try(body, asked, send)
            self._outcome = "cached" if self._hit else "answered"
        except asyncio.CancelledError:
            if self._cause is None:
                raise
            await self._report(self._cause, receive, send)
        except Exception as problem:
            self._outcome = outcome_of(problem)
            await self._report(as_penstock_error(problem), receive, send)

    async def _try(self, body: bytes, asked: Asked, send: Send) -> None:
        """Send it to one replica after another, until one has answered."""
        scope, rules = self._scope, self._dispatch.rules
        check_permitted(self._tenant.permits, scope["path"], asked.model)
        named, session = asked.model, session_named(scope["headers"])
        if self._copied is not None and self._dispatch.splits:
            asked, body, self._split = divided(self._dispatch, self._tenant, scope["path"], asked, body, session)
        may_be = may_get(rules, asked.model or self._dispatch.only_model)
        may_be |= ({named} if named else set()) | self._dispatch.shadows.models(named)
        checks = self._dispatch.guardrails.of(self._tenant, may_be, scope["path"], self.way)
        asked, body = await checks.before(asked, body)
        if rules:
            asked, body = await with_model(
                rules,
                self._dispatch.models_for(self._tenant.permits),
                asked,
                body,
                lambda judge: judged(self._dispatch, judge, asked, scope),
            )
        wanted = await self._dispatch.read(asked, scope["path"], body, session, self._tenant)
        if in_background(scope):
            wanted.turn.priority += BACKGROUND_PRIORITY + 2**31
        self._expected, self._model = wanted.tokens, asked.model or self._dispatch.only_model
        asked, body = bounded(self._tenant.permits, scope["path"], asked, body, wanted.tokens)
        look = self._look = await self._dispatch.answers.look(self._tenant, scope, body)
        self.way.cached, self._hit = look.cached, look.found is not None
        if look.found is not None:
            self._spending = await self._dispatch.limits.admit_again(self._tenant)
            self._started = True
            self._dispatch.figures.first_byte.observe(self._seconds)
            await look.give(look.found, self._spending.headers, send)
            return
        send = look.recording(send)
        abroad = self._dispatch.way_out(asked, scope["path"], body, self._tenant)
        if in_background(scope) and abroad is not None and not abroad.only:
            # It can wait for a machine that has nothing else to do.
            abroad = None
        hands_over = scope["path"] in PATHS and asked.prompts == 1
        wanted = wanted._replace(abroad=abroad, hands_over=hands_over)
        self._held = checks.holding(send)
        send = self._held or send
        self._spending = await admitted(self._dispatch, self._tenant, asked, wanted, self._model, scope)
        if asked.previous_response_id is not None and scope["path"].startswith(PREVIOUS.path):
            keepers = await self._dispatch.kept.holders(PREVIOUS, asked.previous_response_id, scope)
            wanted = wanted._replace(keepers=keepers)
        if self._copied is not None and not is_line(scope):
            self._copied(scope, named, asked, body)
        attempt: Attempt | None = await self._dispatch.first(wanted)
        wanted = wanted._replace(hands_over=False)
        try:
            while attempt is not None:
                self._begin_try(attempt)
                attempt = await self._ask(attempt, wanted, body, send)
        finally:
            self._dispatch.end(wanted, self._output)
            self._dispatch.demands.ended(wanted.model, self._used if self._usage else None, self._output)

    def _begin_try(self, attempt: Attempt) -> None:
        """It was sent to one more replica."""
        self._tried.append(attempt.replica.place)
        attempt.told.at = self._seconds
        self.way.tries.append(attempt.told)

    def _end_try(self, attempt: Attempt, output: int = 0) -> None:
        """Nothing more comes from a replica."""
        attempt.told.seconds = self._seconds - attempt.told.at
        attempt.over(output)

    async def _ask(self, attempt: Attempt, wanted: Wanted, body: bytes, send: Send) -> Attempt | None:
        """Pass the answer of a replica on; the next attempt where it has none, and another may be asked."""
        attempt.told.ended, self._last = "left", attempt
        # Why another one is to go on with a stream; whether only since this one has too much to do.
        why, busy = "", False
        handed: Offer | None = None

        def one_more() -> Attempt | None:
            other = self._dispatch.hedge(wanted, self._tried)
            if other is not None:
                self._begin_try(other)
            return other

        try:
            async with contextlib.AsyncExitStack() as stack:
                if (seconds := self._hedge_after(wanted, hands_over=attempt.hands_over)) is None:
                    answer, head, piece = await stack.enter_async_context(self._opened(attempt, wanted, body))
                else:
                    race = Race(attempt, lambda one: self._opened(one, wanted, body), one_more, self._lost)
                    try:
                        answer, head, piece = await race.run(seconds, stack)
                    finally:
                        attempt = self._last = race.ahead
                    if race.left is not None:
                        # It would have begun later still.
                        self._dispatch.hedging.began(self._seconds - race.left.told.at)
                attempt.told.ended = f"it answered with status {head.status}"
                if head.is_fault:
                    attempt.failed()
                handed = offer_of(head) if attempt.hands_over else None
                if handed is None and self._started and not (head.status == _GOOD and is_tracked(head.headers)):
                    # It does not go on with the stream; it may be busy, or something was kept by the first one only.
                    why, busy = attempt.told.ended, head.is_refusal and not head.is_fault
                elif handed is None:
                    further = await self._further(attempt, wanted) if attempt.is_refused(head) else None
                    if further is not None:
                        return further
                    await self._answer(head, piece, answer, attempt, send)
                    handed = None if self._track is None else self._track.offer
                    if handed is None:
                        self._whole = True
                        attempt.told.ended = f"answered with status {head.status}"
                        return None
        except ReplicaBroken as problem:
            why = attempt.told.ended = problem.message
            attempt.failed()
        finally:
            self._end_try(attempt, (self._output or 0) if self._whole else 0)
        if handed is not None:
            return await self._handed(attempt, wanted, handed)
        if self._started:
            return await self._other(attempt.replica, wanted, why, busy=busy)
        if attempt.replica.hosted is not None:
            further = await self._dispatch.back(wanted, self._tried)
        else:
            granted, self._granted = self._granted, False
            further = await self._dispatch.again(wanted, self._tried, attempt, granted=granted)
        if further is None:
            raise broken(attempt.replica.name, why)
        return further

    async def _handed(self, attempt: Attempt, wanted: Wanted, offer: Offer) -> Attempt:
        """The next attempt, behind one that computes no more. Raises ReplicaBroken where there can be none."""
        name, why = attempt.replica.name, "it has computed the prompt" if offer.place else "it can offer nothing"
        attempt.told.ended, self._asking.offer, self._tried = why, offer if offer.place else None, []
        self._asking.offered_by = attempt.replica
        attempt.succeeded()
        if self._track is not None:
            self._asking.begun = begun_in(self._track, name, why)
            self._track = Track(self._asking.begun)
        offered = bool(offer.place)
        further = await self._dispatch.handed(wanted, attempt.replica, begun=self._started, brought=offered)
        if further is None:
            raise broken(name, f"{why}, and no replica can go on")
        return further

    async def _further(self, attempt: Attempt, wanted: Wanted) -> Attempt | None:
        """The next attempt, where a replica or a provider did not take the request; None where there is none."""
        dispatch = self._dispatch
        return await (dispatch.again if attempt.replica.hosted is None else dispatch.back)(wanted, self._tried)

    def _hedge_after(self, wanted: Wanted, *, hands_over: bool) -> float | None:
        """Seconds after which another replica is asked, too; None: none is."""
        if self._started or len(wanted.keepers) == 1 or not wanted.stream or hands_over:
            return None
        return self._dispatch.hedging.seconds

    def _lost(self, attempt: Attempt, why: str) -> None:
        """An attempt is not heard, since another one is."""
        attempt.told.ended = why
        self._end_try(attempt)

    @contextlib.asynccontextmanager
    async def _opened(self, attempt: Attempt, wanted: Wanted, body: bytes) -> AsyncIterator[Opened]:
        """The beginning of a replica's answer, which is left where the block ends before it does."""
        async with self._asking.answer(attempt, wanted, body) as answer:
            head, piece = await answer.head(), await answer.piece()
            if wanted.stream and not self._started and head.status == _GOOD:
                self._dispatch.hedging.began(self._seconds - attempt.told.at)
            if wanted.stream and self._asking.offer is not None and head.status == _GOOD:
                self._dispatch.handing.times.measured(wanted.tokens, self._seconds - attempt.told.at)
            yield Opened(answer, head, piece)

    def _may_move(self, replica: Replica, wanted: Wanted) -> bool:
        """Whether another replica can answer instead, or go on. It then does."""
        if not self._started:
            self._granted = self._granted or self._dispatch.may_begin_again(wanted, self._tried)
            return self._granted
        return self._track is not None and bool(self._dispatch.can_go_on(wanted, replica, [replica.place]))

    async def _other(self, left: Replica, wanted: Wanted, why: str, *, busy: bool) -> Attempt:
        """The next attempt at a stream that has begun. Raises ReplicaBroken where there can be none.

        One that was too `busy` to go on may be asked again, for as long as requests wait for replicas.
        """
        track, now = self._track, self._seconds
        if track is None:
            # What the client has a byte of is not begun again.
            raise broken(left.name, why)
        if track.has_more:
            self._asking.begun = begun_in(track, left.name, why)
            self._track, self._tried, self._busy_since = Track(self._asking.begun), [left.place], None
        self._busy_since = now if self._busy_since is None and busy else self._busy_since
        if busy and self._busy_since is not None and now - self._busy_since < self._dispatch.hold.seconds:
            await asyncio.sleep(_BUSY_SECONDS)
            self._tried = [place for place in self._tried if place != left.place]
            self._moves -= 1
        further = None
        if self._moves < _MOST_MOVES:
            further = await self._dispatch.go_on(wanted, left, self._tried)
        if further is None:
            raise broken(left.name, why)
        self._moves += 1
        return further

    async def _answer(self, head: Head, piece: bytes, answer: Answer, attempt: Attempt, send: Send) -> None:
        if not self._started:
            self._streams, self._status = streams(head.headers), head.status
            self._track = Track() if self._streams and is_tracked(head.headers) else None
            headers = returned(head.headers, attempt.replica)
            headers += [] if self._spending is None else self._spending.headers
            await send({"type": "http.response.start", "status": head.status, "headers": headers})
            self._started = True
            self._dispatch.figures.first_byte.observe(asyncio.get_running_loop().time() - self._arrived)
        if head.status == _GOOD and self._spending is not None:
            self._usage = UsageReader(head)
        self._events = self._track
        if self._streams and self._track is None:
            self._events = WholeEvents(counted=is_counted(head.headers))
        attempt.answering()
        await self._pass_on(piece, answer, send)
        if head.status < _FAULTS:
            attempt.succeeded()

    async def _pass_on(self, piece: bytes, answer: Answer, send: Send) -> None:
        """Pass the body on as it comes, from its first piece to its end."""
        events, usage = self._events, self._usage
        while piece:
            if usage is not None:
                usage.take(piece)
            passed = piece if events is None else events.take(piece)
            if passed:
                await send({"type": "http.response.body", "body": passed, "more_body": True})
            piece = await answer.piece()
        if usage is not None:
            usage.end()
        if self._track is not None and self._track.offer is not None:
            return
        rest = b"" if events is None else events.rest()
        await send({"type": "http.response.body", "body": rest, "more_body": False})

    async def _report(self, error: PenstockError, receive: Receive, send: Send) -> None:
        self._code = error.code
        if not self._started or (self._held is not None and not self._held.released):
            await error_response(error, self._form)(self._scope, receive, send)
        elif self._streams:
            await send({"type": "http.response.body", "body": self._form.event(error), "more_body": False})
        else:
            # Half a JSON object is no answer: the connection is cut, so that the client knows.
            raise error


def outcome_of(problem: Exception) -> Outcome:
    if isinstance(problem, Overloaded | GuardrailUnavailable):
        return "refused"
    return "invalid" if isinstance(problem, RequestError) else "broken"
