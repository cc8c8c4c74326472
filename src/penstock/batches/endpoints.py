"""`/v1/batches`: many requests in one file, run when no other request waits."""

import time
import uuid
from collections.abc import Collection
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.access.tenants import Tenant, tenant_of
from penstock.api.extras import check_metadata
from penstock.api.fields import parse_fields
from penstock.api.listing import list_page, read_page
from penstock.batches.files import require
from penstock.batches.runner import BatchRunner
from penstock.batches.uploads import check_expiry
from penstock.core.checks import check_characters
from penstock.core.errors import InvalidParameter
from penstock.http.answers import json_response
from penstock.http.body import read_json_body
from penstock.storage.batches import ENDED, Batch, BatchStore
from penstock.storage.quotas import DAY
from penstock.storage.store import Store

WINDOW = "24h"
_USUALLY_LISTED, _MOST_LISTED = 20, 100
_MOST_BODY_BYTES = 64 * 1024


class ExpiresAfter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a batch's files expire: seconds after the anchor."""

    anchor: str
    seconds: int


class BatchFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/batches`."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None


class BatchesApi:
    """The endpoints that create, list, read and cancel batches."""

    def __init__(
        self, store: Store | None, why_none: str, endpoints: Collection[str], runner: BatchRunner | None
    ) -> None:
        """`endpoints` may be asked for by a batch; `runner` runs them, where there is a store."""
        self._store = store
        self._why_none = why_none
        self._endpoints = endpoints
        self._runner = runner

    def routes(self) -> list[Route]:
        """The routes of these endpoints."""
        return [
            Route("/v1/batches", self.collection, methods=["GET", "POST"]),
            Route("/v1/batches/{id}", self.one, methods=["GET"]),
            Route("/v1/batches/{id}/cancel", self.cancel, methods=["POST"]),
        ]

    async def collection(self, request: Request) -> Response:
        """`POST /v1/batches` and `GET /v1/batches`"""
        batches, tenant = self._batches(), tenant_of(request)
        owner = tenant.name
        if request.method == "POST":
            batch = self._new(parse_fields(await read_json_body(request, _MOST_BODY_BYTES), BatchFields), tenant)
            await batches.create(batch)
            return self._changed(batch)
        found, more = await batches.page(owner, read_page(request, usual=_USUALLY_LISTED, most=_MOST_LISTED))
        return json_response(list_page([self._object(batch) for batch in found], more))

    async def one(self, request: Request) -> Response:
        """`GET /v1/batches/{id}`"""
        batch = await self._batches().get(request.path_params["id"], tenant_of(request).name)
        return json_response(self._object(batch))

    async def cancel(self, request: Request) -> Response:
        """`POST /v1/batches/{id}/cancel`: what is done stays; the rest is not run."""
        owner = tenant_of(request).name
        batch = await self._batches().cancel(request.path_params["id"], owner, int(time.time()))
        return self._changed(batch)

    def _changed(self, batch: Batch) -> Response:
        """There is something new to do."""
        if self._runner is not None:
            self._runner.wake()
        return json_response(self._object(batch))

    def _object(self, batch: Batch) -> dict[str, Any]:
        return batch_object(batch, None if self._runner is None else self._runner.waiting)

    def _batches(self) -> BatchStore:
        return require(self._store, self._why_none).batches

    def _new(self, fields: BatchFields, tenant: Tenant) -> Batch:
        check_characters("input_file_id", fields.input_file_id)
        if fields.endpoint not in self._endpoints:
            known = ", ".join(sorted(self._endpoints))
            raise InvalidParameter("endpoint", f"{fields.endpoint[:80]!r} cannot be asked by a batch; {known} can.")
        if fields.completion_window != WINDOW:
            raise InvalidParameter("completion_window", f"{fields.completion_window[:40]!r} is not {WINDOW!r}.")
        check_metadata(fields.metadata or {})
        expiry, now = fields.output_expires_after, int(time.time())
        return Batch(
            id=f"batch_{uuid.uuid4().hex}",
            endpoint=fields.endpoint,
            input_file_id=fields.input_file_id,
            created_at=now,
            expires_at=now + DAY,
            owner=tenant.name,
            key=tenant.key,
            metadata=fields.metadata,
            output_seconds=None
            if expiry is None
            else check_expiry("output_expires_after", expiry.anchor, expiry.seconds),
        )


def batch_object(batch: Batch, waiting: str | None) -> dict[str, Any]:
    """A batch as the API has it; `waiting` is why none comes on now."""
    problems = [
        {"code": problem.code, "line": problem.line, "message": problem.message, "param": problem.param}
        for problem in batch.problems
    ]
    same = (
        *("id", "endpoint", "input_file_id", "status", "output_file_id", "error_file_id", "metadata"),
        *("created_at", "in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at", "expired_at"),
        *("cancelling_at", "cancelled_at"),
    )
    return {
        "object": "batch",
        **{name: getattr(batch, name) for name in same},
        "status_details": f"The batch waits: {waiting}" if waiting and batch.status not in ENDED else None,
        "completion_window": WINDOW,
        "errors": {"object": "list", "data": problems} if problems else None,
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
    }
