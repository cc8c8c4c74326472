"""One request that Envoy passes on: where it goes, and what becomes of it there."""

import asyncio
import contextlib
import functools
import ipaddress
import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

from starlette.types import Scope

from penstock.access.tenants import EVERYBODY
from penstock.core.errors import ConfigurationError, Overloaded
from penstock.gateway.app import MAX_BODY_BYTES
from penstock.gateway.asked import parse_asked
from penstock.gateway.attempt import Attempt
from penstock.gateway.dispatch import Dispatch, Wanted
from penstock.gateway.envoy import messages
from penstock.gateway.envoy.protocol import BUFFERED, FULL_DUPLEX_STREAMED, Message
from penstock.gateway.errors import NoReplica
from penstock.gateway.exchange import Head, Headers
from penstock.gateway.headers import session_named
from penstock.gateway.kept import BATCHES, FILES, PREVIOUS, RESPONSES, Kind
from penstock.gateway.passing import outcome_of
from penstock.gateway.replicas import Replica
from penstock.gateway.rules import renamed
from penstock.gateway.used import UsageReader
from penstock.gateway.ways import Way
from penstock.http.body import BodyRoom
from penstock.http.error_bodies import ID_HEADER, Dialects, error_response
from penstock.http.errors import BodyTooLarge, as_penstock_error
from penstock.observability.gateway_definitions import Outcome
from penstock.observability.request_ids import client_id, new_request_id
from penstock.routing.line import Turn
from penstock.tenancy.settings import ENDPOINTS

logger = logging.getLogger("penstock.gateway")

# Endpoints behind the first one, for an Envoy that cannot reach that.
_MOST_FALLBACKS = 2
_GOOD, _SHED = 200, 429
_KEPT = (RESPONSES, FILES, BATCHES)


class _Chosen(NamedTuple):
    """A request that has had its turn; the endpoints that Envoy was told, the first one first, with their replicas."""

    wanted: Wanted
    attempt: Attempt
    endpoints: dict[str, Replica]


class Picking:
    """A request from its headers to the end of its answer."""

    def __init__(self, dispatch: Dispatch, dialects: Dialects, room: BodyRoom) -> None:
        """`room` is what all bodies may take together that are held."""
        self._dispatch, self._dialects = dispatch, dialects
        self._held = contextlib.ExitStack()
        self._grow = self._held.enter_context(room.hold())
        self._arrived = _now()
        self._headers: Headers = []
        self._method, self._path = "", ""
        self._subset: frozenset[str] | None = None
        self._body = bytearray()
        self._streams_back = self._is_buffered = False
        self._chosen: _Chosen | None = None
        self._usage: UsageReader | None = None
        self._outcome: Outcome = "cancelled"
        # The class of the error that it has ended with.
        self._code = ""
        self._way: Way | None = None
        self.is_refused = False

    async def take(self, message: Message) -> list[Message]:
        """What Envoy is answered; nothing while more of the request is to come."""
        if self._chosen is not None:
            return self._goes_on(message)
        try:
            return await self._comes(message)
        except Exception as problem:
            return [self._refused(problem)]

    def _refused(self, problem: Exception) -> Message:
        self._outcome, self.is_refused = outcome_of(problem), True
        form, error = self._dialects.at(self._path).errors_of(bytes(self._body)), as_penstock_error(problem)
        response = error_response(error, form)
        if isinstance(error, Overloaded) and not isinstance(error, NoReplica):
            # There are replicas, so that this is none of the faults for which proxies ask again.
            response.status_code = _SHED
        if self._way is not None:
            response.headers[ID_HEADER.decode()] = self._way.id
        self._code = error.code
        return messages.refused(response)

    async def _comes(self, message: Message) -> list[Message]:
        """Something of a request that was not sent on yet."""
        if message.HasField("request_headers"):
            self._begin(message)
            if message.request_headers.end_of_stream:
                endpoints, _ = await self._choose(b"")
                return [messages.picked(endpoints, None)]
            return [messages.headers(of_request=True)] if self._is_buffered else []
        if message.HasField("request_body"):
            self._body += message.request_body.body
            self._grow(len(self._body))
            if len(self._body) > MAX_BODY_BYTES:
                raise BodyTooLarge(f"The body has more than {MAX_BODY_BYTES} bytes, which is the most that is read.")
            return await self._answers_body(ends=True) if message.request_body.end_of_stream else []
        return [*await self._answers_body(ends=False), messages.trailers(of_request=True)]

    def _goes_on(self, message: Message) -> list[Message]:
        """Something of a request that was sent on, or of its answer: it is passed on, whatever is learnt of it."""
        if message.HasField("request_trailers"):
            return [messages.trailers(of_request=True)]
        if message.HasField("response_headers"):
            try:
                self._answers(message)
            except Exception:
                logger.exception("the head of an answer could not be counted")
            return [messages.headers(of_request=False)]
        if message.HasField("response_body"):
            if self._usage is not None:
                self._usage.take(message.response_body.body)
            return [messages.response_body(message.response_body, streamed=self._streams_back)]
        return [messages.trailers(of_request=False)]

    def _begin(self, message: Message) -> None:
        headers, modes = message.request_headers, message.protocol_config
        self._headers, self._subset = messages.headers_of(headers), messages.subset_of(message)
        given = dict(self._headers)
        self._method = given.get(b":method", b"").decode("latin-1")
        self._path = given.get(b":path", b"").partition(b"?")[0].decode("latin-1")
        name = client_id(given.get(ID_HEADER))
        self._way = Way(name or new_request_id(), self._path, EVERYBODY.name, name, time.time(), [])
        self._dispatch.ways.begin(self._way)
        self._streams_back = modes.response_body_mode == FULL_DUPLEX_STREAMED
        self._is_buffered = modes.request_body_mode == BUFFERED
        if not headers.end_of_stream and modes.request_body_mode not in (BUFFERED, FULL_DUPLEX_STREAMED):
            raise ConfigurationError(
                "The endpoint picker needs the bodies of requests: set request_body_mode of Envoy's ext_proc filter to "
                "FULL_DUPLEX_STREAMED, with request_trailer_mode SEND, or to BUFFERED."
            )

    async def _answers_body(self, *, ends: bool) -> list[Message]:
        """Where it goes, and its body, now that all of that is there."""
        given = bytes(self._body)
        endpoints, body = await self._choose(given)
        if self._is_buffered:
            return [messages.picked_with_body(endpoints, None if body == given else body)]
        return [messages.picked(endpoints, len(body)), *messages.request_body(body, ends=ends)]

    async def _choose(self, body: bytes) -> tuple[list[str], bytes]:
        """Where it goes, once its turn has come, and its body. Raises PenstockError where it goes nowhere."""
        dispatch = self._dispatch
        wanted, body = await self._wanted(body)
        attempt = await dispatch.first(wanted)
        try:
            endpoints = {await _endpoint(attempt.replica): attempt.replica}
        except BaseException:
            attempt.failed()
            attempt.over()
            dispatch.end(wanted, 0)
            raise
        self._chosen = _Chosen(wanted, attempt, endpoints)
        attempt.told.at = _now() - self._arrived
        if self._way is not None:
            self._way.tries.append(attempt.told)
        # It is Envoy's now.
        self._body.clear()
        self._held.close()
        loads, outliers, now = dispatch.router.loads, dispatch.outliers, _now()
        others = dispatch.ready(wanted, [attempt.replica.place])
        able = (each for each in others if loads.has_room(each) and outliers.why(each, now) is None)
        for place in sorted(able, key=loads.requests.__getitem__)[:_MOST_FALLBACKS]:
            replica = dispatch.replicas.all[place]
            with contextlib.suppress(NoReplica):
                endpoints[await _endpoint(replica)] = replica
        return list(endpoints), body

    async def _wanted(self, body: bytes) -> tuple[Wanted, bytes]:
        """What it asks for, and its body, which names its model now."""
        dispatch, path = self._dispatch, self._path
        keepers = await self._allowed()
        if path not in ENDPOINTS or self._method != "POST":
            number, kind = dispatch.own("", 0, EVERYBODY, 0), _kind_of(path)
            if kind is not None:
                keepers = _among(await dispatch.kept.holders(*kind, self._scope()), keepers)
            return number._replace(model=None, turn=Turn(number.turn.number, 1), keepers=keepers or ()), body
        asked = parse_asked(body)
        model = dispatch.replicas.made_for(path) if asked.model is None else None
        if model is not None:
            asked, body = renamed(asked, body, model)
        wanted = await dispatch.read(asked, path, body, session_named(self._headers), EVERYBODY)
        if asked.previous_response_id is not None and path.startswith(PREVIOUS.path):
            keepers = _among(await dispatch.kept.holders(PREVIOUS, asked.previous_response_id, self._scope()), keepers)
        return wanted._replace(keepers=keepers or ()), body

    async def _allowed(self) -> list[Replica] | None:
        """The replicas of Envoy's subset; None where it names none. Raises NoReplica where none is in it."""
        if self._subset is None:
            return None
        there = self._dispatch.replicas.machines
        found = list[Replica]()
        for each in there:
            # One without an address now is none of them.
            with contextlib.suppress(NoReplica):
                if await _endpoint(each) in self._subset:
                    found.append(each)
        return _among(found, None)

    def _scope(self) -> Scope:
        """Of the request, for what a replica is asked on its behalf."""
        headers = [each for each in self._headers if not each[0].startswith(b":")]
        return {
            "type": "http",
            "method": self._method,
            "path": self._path,
            "raw_path": self._path.encode("latin-1"),
            "query_string": b"",
            "headers": headers,
        }

    def _answers(self, message: Message) -> None:
        """An answer begins, which may come from another replica than the one that was picked."""
        if self._chosen is None:
            return
        given = messages.headers_of(message.response_headers)
        status = int(dict(given).get(b":status", b"0"))
        head = Head(status, given)
        wanted, attempt, _ = self._chosen
        attempt = self._served(wanted, attempt, messages.served_by(message))
        attempt.answering()
        attempt.told.ended = f"answered with status {status}"
        if head.is_fault:
            attempt.failed()
        elif not head.is_refusal:
            attempt.succeeded()
        if status == _GOOD:
            self._usage = UsageReader(head)
        self._outcome = "answered"
        self._dispatch.figures.first_byte.observe(_now() - self._arrived)

    def _served(self, wanted: Wanted, attempt: Attempt, by: str | None) -> Attempt:
        """The attempt at the replica that has answered, which is not counted where it was not."""
        told = {} if self._chosen is None else self._chosen.endpoints
        other = attempt.replica if by is None else told.get(by)
        if other is None:
            machines = self._dispatch.replicas.machines
            other = next((each for each in machines if _plain(each) == by), None)
        if other is None or other is attempt.replica:
            return attempt
        attempt.told.ended = f"Envoy has sent it to {other.name}"
        attempt.failed()
        self._end_attempt(attempt, 0)
        # It is there, whatever was wanted.
        moved = self._dispatch.send(wanted._replace(keepers=()), [other.place])
        moved.told.at = _now() - self._arrived
        if self._way is not None:
            self._way.tries.append(moved.told)
        self._chosen = _Chosen(wanted, moved, told)
        return moved

    def end(self) -> None:
        """Envoy is done with it, in whatever way."""
        self._held.close()
        if self._way is None:
            return
        if self._usage is not None:
            self._usage.end()
        used = None if self._usage is None else self._usage.used
        if self._chosen is not None:
            wanted, attempt, _ = self._chosen
            output = None if used is None else used.output
            self._end_attempt(attempt, output or 0)
            self._dispatch.end(wanted, output)
            self._dispatch.demands.ended(wanted.model, used, output)
        self._way.used = used
        self._way.outcome, self._way.seconds = self._outcome, _now() - self._arrived
        self._dispatch.figures.requests[self._outcome] += 1
        where = f" at {self._way.tries[-1].replica} ({self._way.tries[-1].reason})" if self._way.tries else ""
        why = f" ({self._code})" if self._code else ""
        logger.info("%s %s%s%s for Envoy, %.3f s", self._path, self._outcome, why, where, self._way.seconds)

    def _end_attempt(self, attempt: Attempt, output: int) -> None:
        attempt.told.ended = attempt.told.ended or "left"
        attempt.told.seconds = _now() - self._arrived - attempt.told.at
        attempt.over(output)


def _among(found: Sequence[Replica], allowed: Sequence[Replica] | None) -> list[Replica]:
    """Those that may be picked. Raises NoReplica where none is."""
    left = [each for each in found if allowed is None or each in allowed]
    if not left:
        raise NoReplica("No replica is among the endpoints that may be picked for this request; try again later.")
    return left


def _kind_of(path: str) -> tuple[Kind, str] | None:
    """What is kept at a path, and its id."""
    for kind in _KEPT:
        if path.startswith(f"{kind.path}/"):
            return kind, path[len(kind.path) + 1 :].partition("/")[0]
    return None


def _plain(replica: Replica) -> str:
    """The host and port of a replica."""
    return messages.endpoint(*replica.pool.address[:2])


async def _endpoint(replica: Replica) -> str:
    """The address and port of a replica, as Envoy needs them. Raises NoReplica where its name has no address."""
    host, port = replica.pool.address[:2]
    if _is_address(host):
        return _plain(replica)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port)
    except OSError as error:
        raise NoReplica(f"{replica.name} has no address now ({error.strerror}); try again later.") from None
    return messages.endpoint(str(found[0][4][0]), port)


@functools.cache
def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _now() -> float:
    return asyncio.get_running_loop().time()
