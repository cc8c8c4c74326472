"""What only the operator may do, on a unix socket of its own: look into the engine, pause it, let it fail."""

import contextlib
import os
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.api.fields import parse_fields
from penstock.api.names import model_not_found
from penstock.core.config import Reason
from penstock.core.errors import AddressInUse, ConfigurationError, InvalidParameter, PenstockError
from penstock.core.events import LoadSnapshot
from penstock.core.faults import POINTS, FailAction, Fault
from penstock.http.answers import json_response
from penstock.http.body import read_json_body
from penstock.http.error_bodies import Dialects, ErrorHandlers
from penstock.observability.accounts import Accounts
from penstock.server.explain import ExplainApi

MAX_BODY_BYTES = 64 * 1024


class Administered(Protocol):
    """An engine, as its operator sees it."""

    @property
    def load(self) -> LoadSnapshot:
        """The newest snapshot of the engine's load."""

    def pause(self, after_steps: int | None) -> None:
        """Have nothing computed after a number of steps; None: go on."""

    def arm(self, fault: Fault) -> None:
        """Let something go wrong at a fail-point."""

    async def inspect(self) -> str | None:
        """Which invariant of the engine's books is broken; None where all hold."""


class FailPointFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /fail-points`."""

    point: str
    action: FailAction
    passes: Annotated[int, msgspec.Meta(ge=0)] = 0
    rank: int = 0


class PauseFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /pause`: the engine is paused after a number of steps that it still computes."""

    paused: bool
    after_steps: Annotated[int, msgspec.Meta(ge=0)] = 0


def create_admin_app(
    engines: Mapping[str, Administered], reasons: list[Reason], accounts: Sequence[Accounts]
) -> Starlette:
    """The ASGI application for the operator; `reasons` are the settings that the server was started with.

    `engines` are those of its models, by name; the first is meant where none is named. `accounts` are those of all
    tenants' requests, by model.
    """
    admin = _Admin(engines, reasons)
    return Starlette(
        routes=[
            Route("/config", admin.config, methods=["GET"]),
            Route("/invariants", admin.invariants, methods=["GET"]),
            Route("/fail-points", admin.fail_points, methods=["GET", "POST"]),
            Route("/pause", admin.pause, methods=["POST"]),
            *ExplainApi(accounts, lambda request: None).routes(),
        ],
        exception_handlers=ErrorHandlers(Dialects()).all(),
    )


class _Admin:
    def __init__(self, engines: Mapping[str, Administered], reasons: list[Reason]) -> None:
        self._engines = engines
        self._reasons = reasons

    def _engine(self, request: Request) -> Administered:
        """That of the model which the query names, or of the first. Raises ModelNotFound."""
        name = request.query_params.get("model")
        if name is not None and name not in self._engines:
            raise model_not_found(name, list(self._engines))
        return next(iter(self._engines.values())) if name is None else self._engines[name]

    async def config(self, request: Request) -> Response:
        """`GET /config`: every setting and why it has its value."""
        return json_response(
            [{"setting": reason.setting, "value": reason.value, "why": reason.why} for reason in self._reasons]
        )

    async def invariants(self, request: Request) -> Response:
        """`GET /invariants`: whether everything that must hold in the engine does, and its load."""
        engine = self._engine(request)
        problem = await engine.inspect()
        return json_response({"sound": problem is None, "problem": problem, "load": _named(engine.load)})

    async def fail_points(self, request: Request) -> Response:
        """`GET` and `POST /fail-points`: where the engine can be made to fail, and making it fail there."""
        if request.method == "GET":
            return json_response(dict(POINTS))
        fields = parse_fields(await read_json_body(request, MAX_BODY_BYTES), FailPointFields)
        fault = Fault(fields.point, fields.action, fields.passes, fields.rank)
        self._engine(request).arm(fault)
        return json_response({"armed": fault.point, "action": fault.action, "passes": fault.passes, "rank": fault.rank})

    async def pause(self, request: Request) -> Response:
        """`POST /pause`: the engine computes nothing, at once or after some steps, or goes on; requests wait."""
        fields = parse_fields(await read_json_body(request, MAX_BODY_BYTES), PauseFields)
        if fields.after_steps and not fields.paused:
            raise InvalidParameter("after_steps", "The engine goes on without end; steps are counted until a pause.")
        self._engine(request).pause(fields.after_steps if fields.paused else None)
        return json_response(fields)


def _named(load: LoadSnapshot) -> dict[str, int]:
    """A snapshot crosses the process boundary as a list; people get names."""
    return {name: getattr(load, name) for name in load.__struct_fields__}


@contextlib.contextmanager
def admin_socket(path: Path) -> Iterator[socket.socket]:
    """A unix socket that only this user can connect to, listening; it is removed behind the block.

    Raises AddressInUse where another server listens there, ConfigurationError where the path cannot be used.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen()
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"--admin-socket {path} cannot be used: {error.strerror or error}.") from error
    except PenstockError:
        listener.close()
        raise
    try:
        yield listener
    finally:
        listener.close()
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _remove_stale(path: Path) -> None:
    """Remove the socket of a server that has gone without doing so."""
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise ConfigurationError(f"--admin-socket {path} is there already and no socket; choose another path.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(str(path)) == 0:
            raise AddressInUse(f"Another server listens on --admin-socket {path}; choose another path.")
    path.unlink()
