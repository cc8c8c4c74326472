"""`/v1/files`: what clients upload for batches, and what batches leave."""

import asyncio
from typing import Any, BinaryIO

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from penstock.access.tenants import tenant_of
from penstock.api.listing import list_page, read_page
from penstock.batches.uploads import receive_upload
from penstock.core.errors import InvalidParameter
from penstock.http.answers import json_response
from penstock.http.body import disconnected
from penstock.storage.batches import INPUT_PURPOSE, OUTPUT_PURPOSE
from penstock.storage.errors import StorageOff
from penstock.storage.files import FileStore, StoredFile
from penstock.storage.store import Store

_CHUNK_BYTES = 256 * 1024
_MOST_LISTED = 10_000


def require(store: Store | None, why_none: str) -> Store:
    """The store. Raises StorageOff where the server has none."""
    if store is None:
        raise StorageOff(why_none)
    return store


class FilesApi:
    """The endpoints that store, list, read and delete files."""

    def __init__(self, store: Store | None, why_none: str) -> None:
        self._store = store
        self._why_none = why_none

    def routes(self) -> list[Route]:
        """The routes of these endpoints."""
        return [
            Route("/v1/files", self.collection, methods=["GET", "POST"]),
            Route("/v1/files/{id}", self.one, methods=["GET", "DELETE"]),
            Route("/v1/files/{id}/content", self.content, methods=["GET"]),
        ]

    async def collection(self, request: Request) -> Response:
        """`POST /v1/files` and `GET /v1/files`"""
        files, owner = self._files(), tenant_of(request).name
        if request.method == "POST":
            return json_response(file_object(await receive_upload(request, files, owner)))
        page = read_page(request, usual=_MOST_LISTED, most=_MOST_LISTED, others=("order", "purpose"))
        found, more = await files.page(owner, page, read_purpose(request).get("purpose"))
        return json_response(list_page([file_object(file) for file in found], more))

    async def one(self, request: Request) -> Response:
        """`GET /v1/files/{id}` and `DELETE /v1/files/{id}`"""
        files, file_id, owner = self._files(), request.path_params["id"], tenant_of(request).name
        if request.method == "DELETE":
            await files.delete(file_id, owner)
            return json_response({"id": file_id, "object": "file", "deleted": True})
        return json_response(file_object(await files.get(file_id, owner)))

    async def content(self, request: Request) -> "ContentResponse":
        """`GET /v1/files/{id}/content`"""
        return ContentResponse(*await self._files().open(request.path_params["id"], tenant_of(request).name))

    def _files(self) -> FileStore:
        return require(self._store, self._why_none).files


def read_purpose(request: Request) -> dict[str, str]:
    """What a query says of the purpose of files; nothing where it says nothing. Raises InvalidParameter."""
    purpose = request.query_params.get("purpose")
    if purpose is None:
        return {}
    if purpose not in (INPUT_PURPOSE, OUTPUT_PURPOSE):
        raise InvalidParameter("purpose", f"no file is for {purpose[:40]!r}; they are for 'batch' or 'batch_output'.")
    return {"purpose": purpose}


class ContentResponse:
    """An ASGI response with the contents of a file."""

    def __init__(self, file: StoredFile, contents: BinaryIO) -> None:
        self._file = file
        self._contents = contents

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends as fast as the client reads, and until it has gone."""
        headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", str(self._file.bytes).encode()),
            # Whatever a client has stored, no browser shows it as a page.
            (b"content-disposition", f'attachment; filename="{self._file.id}.jsonl"'.encode()),
            (b"x-content-type-options", b"nosniff"),
        ]
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            with self._contents as contents:
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                while scope["method"] != "HEAD" and (data := await asyncio.to_thread(contents.read, _CHUNK_BYTES)):
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                    if gone.done():
                        return
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()


def file_object(file: StoredFile) -> dict[str, Any]:
    """A file as the API has it."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_at,
        "expires_at": file.expires_at,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }
