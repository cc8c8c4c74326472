"""Takes requests, and passes each on to a replica."""

import asyncio

from msgspec.structs import replace
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from penstock.access.tenants import STATE, Permits, Tenant, tenant_of
from penstock.core.errors import PenstockError
from penstock.core.request import WEIGHTS
from penstock.gateway.asked import Asked, parse_asked
from penstock.gateway.dispatch import Dispatch
from penstock.gateway.passing import Passed
from penstock.gateway.rules import renamed
from penstock.gateway.trials import TENANT, forgotten, no_client, unstored
from penstock.http.body import BodyReader
from penstock.http.drain import running
from penstock.http.error_bodies import Dialects

# The priority of copies, which come after all that clients ask.
_LAST = 1 << 30


class Relay:
    """The way of requests through a gateway."""

    def __init__(self, dispatch: Dispatch, bodies: BodyReader, dialects: Dialects) -> None:
        self.dispatch = dispatch
        self._bodies, self._dialects = bodies, dialects

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request as a replica does."""
        passed = Passed(self.dispatch, self._dialects, scope, self.copy)
        # Its body is kept until the answer is whole, since another replica may be sent it.
        with running(scope, passed), self.dispatch.under_way.noted(passed.key, passed), self._bodies.room() as grow:
            try:
                body = await self._bodies.read_into(Request(scope, receive), grow)
                asked, body = self._naming(scope["path"], parse_asked(body), body)
            except PenstockError as error:
                self.dispatch.figures.requests["invalid"] += 1
                await self._dialects.response(error, scope["path"])(scope, receive, send)
                return
            self.dispatch.ways.begin(passed.way)
            await passed.run(body, asked, receive, send)

    def _naming(self, path: str, asked: Asked, body: bytes) -> tuple[Asked, bytes]:
        """A request with the model that it gets where it names none, so that it is that one wherever it is sent."""
        model = self.dispatch.replicas.made_for(path) if asked.model is None else None
        return (asked, body) if model is None else renamed(asked, body, model)

    def copy(self, scope: Scope, model: str | None, asked: Asked, body: bytes) -> None:
        """Have copies made of a request for a model, where others are tried on these; no client gets their answers."""
        if asked.previous_response_id is None:
            # What a conversation goes on from is its tenant's.
            self.dispatch.shadows.follow(model, lambda to: asyncio.create_task(self._copy(scope, to, asked, body)))

    async def _copy(self, scope: Scope, model: str, asked: Asked, body: bytes) -> None:
        # It may be seen by whom its tenant lets see it, and comes after everybody's.
        seen_by = Permits(privacy_classes=tenant_of(Request(scope)).permits.privacy_classes)
        tenant = Tenant(name=TENANT, weight=WEIGHTS[0], permits=seen_by)
        passed = Passed(self.dispatch, self._dialects, {**scope, "state": {STATE: tenant}}, None)
        self.dispatch.ways.begin(passed.way)
        asked, body = renamed(replace(asked, priority=_LAST), body, model)
        await passed.run(unstored(scope["path"], body), asked, no_client, forgotten)
