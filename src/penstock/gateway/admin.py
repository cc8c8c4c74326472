"""The endpoints below `/admin/v1`, with which tenants are made and looked at; administrators have keys of their own."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from penstock.access.allowances import Allowances
from penstock.access.errors import InvalidApiKey, NotPermitted
from penstock.core.errors import InvalidParameter, RequestError
from penstock.database.connection import Database
from penstock.gateway.administered import PREFIX
from penstock.gateway.in_use import limits_in_use
from penstock.http.answers import json_response
from penstock.http.body import BodyReader
from penstock.http.error_bodies import Dialects, ErrorHandlers
from penstock.http.request_ids import Identified
from penstock.observability.exposition import CONTENT_TYPE
from penstock.tenancy.errors import NotThere
from penstock.tenancy.following import Following
from penstock.tenancy.records import ApiKey, Organisation, Project, Role
from penstock.tenancy.registry import Registry
from penstock.tenancy.settings import Settings, changed
from penstock.tenancy.spending import spending
from penstock.tenancy.statement import Statement, statement

_MOST_BODY_BYTES = 256 * 1024
_MOST_LISTED = 1000
_MOST_SEARCHED = 100
# What can be asked behind a "?", by the path that is read.
_QUERIES = {
    "keys": ("project", "search", "after", "limit"),
    "audit": ("before", "limit"),
    "limits": ("organisation", "project", "limit"),
    "spending": ("first", "last", "by", "of", "most"),
    "statement": ("period", "organisation", "format"),
}
_SECRET = re.compile(r"(?i:bearer) +([!-~]+)")


class _NewOwner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    settings: dict[str, Any] = {}


class _Percent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    percent: float


class _NewKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    project: str | None = None
    role: Role = "member"
    settings: dict[str, Any] = {}
    expires_in: float | None = None


class _Rotation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    overlap: float = 0.0


class _Revocation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    end_streams: bool = False


Handler = Callable[[Request, str], Awaitable[Response]]


class AdminApi:
    """Waits for the database, which those who ask models never do.

    Args:
        metrics: all of the gateway's, with those of tenants, in Prometheus' text format.
        allowances: where limits are counted.
        splits: as this gateway has them.
    """

    def __init__(
        self,
        database: Database,
        registry: Registry,
        following: Following,
        dialects: Dialects,
        metrics: Callable[[], bytes],
        allowances: Callable[[], Allowances],
        splits: Callable[[], list[dict[str, object]]],
    ) -> None:
        self._metrics_text, self._allowances, self._told_splits = metrics, allowances, splits
        self._database, self._registry, self._following = database, registry, following
        self._bodies, self._dialects = BodyReader(_MOST_BODY_BYTES), dialects

    def application(self) -> ASGIApp:
        """What answers below `/admin/v1`."""
        application = Starlette(routes=self.routes(), exception_handlers=ErrorHandlers(self._dialects).all())
        application.router.redirect_slashes = False
        return Identified(application.build_middleware_stack(), self._dialects)

    def routes(self) -> list[Route]:
        """The routes of these endpoints."""
        return [
            *self._routes("administrator", self._self, None),
            *self._routes("organisations", self._organisations, self._make_organisation),
            *self._routes("organisations/{name}", None, None, PATCH=self._set_organisation, DELETE=self._close),
            *self._routes("projects", self._projects, self._make_project),
            *self._routes("projects/{name}", None, None, PATCH=self._set_project, DELETE=self._close),
            *self._routes("keys", self._keys, self._make_key),
            *self._routes("keys/{id}", None, None, PATCH=self._set_key),
            *self._routes("keys/{id}/rotate", None, self._rotate),
            *self._routes("keys/{id}/revoke", None, self._revoke),
            *self._routes("audit", self._audit, None),
            *self._routes("metrics", self._metrics, None),
            *self._routes("statement", self._statement, None),
            *self._routes("spending", self._spending, None),
            *self._routes("limits", self._limits, None),
            *self._routes("splits", self._splits, None),
            *self._routes("splits/{name}", None, None, PATCH=self._set_split),
        ]

    def _routes(self, path: str, get: Handler | None, post: Handler | None, **others: Handler) -> list[Route]:
        given = {"GET": get, "POST": post, **others}
        handlers = {method: handler for method, handler in given.items() if handler is not None}

        async def answer(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            actor = self._administrator(request, reads=method == "GET")
            _check_names(request, _QUERIES.get(path, ()) if method == "GET" else ())
            return await handlers[method](request, actor)

        return [Route(PREFIX + path, answer, methods=list(handlers))]

    def _administrator(self, request: Request, *, reads: bool) -> str:
        """The id of the key of an administrator who may do that. Raises InvalidApiKey, NotPermitted."""
        client = "?" if request.client is None else request.client.host
        try:
            actor, role = self._who(request)
            if role == "member":
                raise InvalidApiKey("The API key is none of an administrator; `penstock key --admin` makes one.")
        except InvalidApiKey as error:
            self._following.refused(client, error.message)
            raise
        if role == "auditor" and not reads:
            raise NotPermitted("This key may look at what is administered, and change nothing.")
        return actor

    def _who(self, request: Request) -> tuple[str, Role]:
        given = _SECRET.fullmatch(request.headers.get("authorization", "").strip())
        if given is None:
            raise InvalidApiKey("This needs the key of an administrator; send it as 'Authorization: Bearer KEY'.")
        return self._following.directory.administrator(given[1].encode())

    async def _self(self, request: Request, actor: str) -> Response:
        _, role = self._who(request)
        return json_response({"id": actor, "role": role, "at": time.time()})

    async def _organisations(self, request: Request, actor: str) -> Response:
        found = await asyncio.to_thread(self._registry.changes)
        return json_response({"object": "list", "data": found.organisations})

    async def _make_organisation(self, request: Request, actor: str) -> Response:
        asked = await self._read(request, _NewOwner)
        settings = changed(Settings(), asked.settings)
        return json_response(await asyncio.to_thread(self._registry.create_organisation, actor, asked.name, settings))

    async def _set_organisation(self, request: Request, actor: str) -> Response:
        fields, name = await self._read(request, dict[str, Any]), request.path_params["name"]

        def work() -> Organisation:
            settings = changed(self._registry.organisation(name).settings, fields)
            return self._registry.set_organisation(actor, name, settings)

        return json_response(await asyncio.to_thread(work))

    async def _projects(self, request: Request, actor: str) -> Response:
        found = await asyncio.to_thread(self._registry.changes)
        return json_response({"object": "list", "data": found.projects})

    async def _make_project(self, request: Request, actor: str) -> Response:
        asked = await self._read(request, _NewOwner)
        settings = changed(Settings(), asked.settings, of_project=True)
        return json_response(await asyncio.to_thread(self._registry.create_project, actor, asked.name, settings))

    async def _set_project(self, request: Request, actor: str) -> Response:
        fields, name = await self._read(request, dict[str, Any]), request.path_params["name"]

        def work() -> Project:
            settings = changed(self._registry.project(name).settings, fields, of_project=True)
            return self._registry.set_project(actor, name, settings)

        return json_response(await asyncio.to_thread(work))

    async def _close(self, request: Request, actor: str) -> Response:
        name = request.path_params["name"]
        is_project = request.url.path.startswith(PREFIX + "projects/")
        if is_project != ("." in name):
            raise InvalidParameter("name", f"is {name[:80]!r}; a project is named ORGANISATION.PROJECT.")
        await asyncio.to_thread(self._registry.close, actor, name)
        return json_response({"closed": name})

    async def _splits(self, request: Request, actor: str) -> Response:
        return json_response({"object": "list", "data": self._told_splits()})

    async def _set_split(self, request: Request, actor: str) -> Response:
        asked, name = await self._read(request, _Percent), request.path_params["name"]
        if all(each["name"] != name for each in self._told_splits()):
            raise NotThere(f"There is no split {name[:80]!r} in this gateway's file.")
        made = await asyncio.to_thread(self._registry.set_split, actor, name, asked.percent)
        return json_response({"name": name, "percent": made.percent})

    async def _keys(self, request: Request, actor: str) -> Response:
        given, most = request.query_params, _most(request)
        search = given.get("search", "")
        if len(search) > _MOST_SEARCHED:
            raise InvalidParameter("search", f"has {len(search)} characters, and can have {_MOST_SEARCHED}.")
        # One more says whether there are more.
        found = await asyncio.to_thread(
            self._registry.list_keys, given.get("project"), search, given.get("after"), most + 1
        )
        told = [{**_told(each.key), "last_used_on": each.last_used_on} for each in found[:most]]
        return json_response({"object": "list", "data": told, "has_more": len(found) > most})

    async def _make_key(self, request: Request, actor: str) -> Response:
        asked = await self._read(request, _NewKey)
        settings = changed(Settings(), asked.settings)

        def work() -> tuple[ApiKey, str]:
            return self._registry.create_key(
                actor, asked.name, asked.project, settings, role=asked.role, seconds=asked.expires_in
            )

        key, secret = await asyncio.to_thread(work)
        return json_response({**_told(key), "key": secret})

    async def _set_key(self, request: Request, actor: str) -> Response:
        fields, identifier = await self._read(request, dict[str, Any]), request.path_params["id"]

        def work() -> ApiKey:
            return self._registry.set_key(actor, identifier, changed(self._registry.key(identifier).settings, fields))

        return json_response(_told(await asyncio.to_thread(work)))

    async def _rotate(self, request: Request, actor: str) -> Response:
        asked = await self._read(request, _Rotation)
        key, secret = await asyncio.to_thread(
            self._registry.rotate_key, actor, request.path_params["id"], asked.overlap
        )
        return json_response({**_told(key), "key": secret})

    async def _revoke(self, request: Request, actor: str) -> Response:
        asked, identifier = await self._read(request, _Revocation), request.path_params["id"]
        key = await asyncio.to_thread(
            lambda: self._registry.revoke_key(actor, identifier, ends_streams=asked.end_streams)
        )
        return json_response(_told(key))

    async def _audit(self, request: Request, actor: str) -> Response:
        before, most = _number(request, "before"), _most(request)
        found = await asyncio.to_thread(self._registry.audit, before, most + 1)
        return json_response({"object": "list", "data": found[:most], "has_more": len(found) > most})

    async def _metrics(self, request: Request, actor: str) -> Response:
        return Response(self._metrics_text(), media_type=CONTENT_TYPE)

    async def _statement(self, request: Request, actor: str) -> Response:
        period, form = request.query_params.get("period", ""), request.query_params.get("format", "json")
        if form not in ("json", "csv"):
            raise InvalidParameter("format", f"is {form[:80]!r}; there are json and csv.")
        organisation = request.query_params.get("organisation")

        def work() -> Statement:
            if organisation is not None:
                self._registry.organisation(organisation)
            return statement(self._database, period, organisation)

        found = await asyncio.to_thread(work)
        return json_response(found) if form == "json" else Response(found.csv, media_type="text/csv")

    async def _spending(self, request: Request, actor: str) -> Response:
        given, of = request.query_params, request.query_params.get("of")
        most = _number(request, "most")

        def work() -> Any:
            if of is not None:
                # One that is not there is told from one that has used nothing.
                self._registry.owner(of)
            first, last, by = given.get("first", ""), given.get("last", ""), given.get("by", "model")
            return spending(self._database, first, last, by, of, 10 if most is None else most)

        return json_response(await asyncio.to_thread(work))

    async def _limits(self, request: Request, actor: str) -> Response:
        organisation, project = (request.query_params.get(name) for name in ("organisation", "project"))
        if organisation is not None and project is not None:
            raise InvalidParameter("project", "goes without an organisation; give one of the two.")
        most, directory, allowances = _most(request), self._following.directory, self._allowances()
        if project is not None:
            await asyncio.to_thread(self._registry.project, project)
        elif organisation is not None:
            await asyncio.to_thread(self._registry.organisation, organisation)
        bounded = directory.bounded_owners(organisation) if project is None else directory.bounded_project(project)
        found = await limits_in_use(bounded, allowances, time.time())
        told = {"object": "list", "data": found[:most], "has_more": len(found) > most}
        return json_response({**told, "apart": allowances.apart})

    async def _read(self, request: Request, kind: type[Any]) -> Any:
        body = await self._bodies.read(request)
        try:
            return msgspec.json.decode(body or b"{}", type=kind)
        except msgspec.DecodeError as error:
            raise RequestError(f"The body cannot be read: {error}.") from None


def _told(key: ApiKey) -> dict[str, Any]:
    """A key as it is shown: without its hash."""
    told = {name: getattr(key, name) for name in ApiKey.__struct_fields__ if name != "digest"}
    return {**told, "state": key.state(time.time())}


def _check_names(request: Request, known: Sequence[str]) -> None:
    """Raise InvalidParameter for parameters that are not known: a name with a slip in it would show everybody's.

    And for values that PostgreSQL cannot look for.
    """
    for name in request.query_params:
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "there are none here"
            raise InvalidParameter(name[:80], f"is no parameter of this path; {there}.")
        if len(request.query_params.getlist(name)) > 1:
            raise InvalidParameter(name, "is there twice; send it once.")
    for name, value in (*request.path_params.items(), *request.query_params.items()):
        if "\0" in value:
            raise InvalidParameter(name, "has a null character, which nothing here has.")


def _most(request: Request) -> int:
    """How many are listed at once."""
    most = _number(request, "limit")
    if most is not None and not 1 <= most <= _MOST_LISTED:
        raise InvalidParameter("limit", f"is {most}; it must be 1 to {_MOST_LISTED}.")
    return 100 if most is None else most


def _number(request: Request, name: str) -> int | None:
    given = request.query_params.get(name)
    if given is None:
        return None
    if not re.fullmatch(r"\d{1,18}", given):
        raise InvalidParameter(name, f"is {given[:80]!r}, which is no number.")
    return int(given)
