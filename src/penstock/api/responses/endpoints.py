"""The endpoints of `/v1/responses`: responses are made, and those that were stored are read and deleted."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from penstock.access.tenants import tenant_of
from penstock.api.conversations import kept_as_conversation
from penstock.api.errors import ResponseNotFound
from penstock.api.fields import FieldReader
from penstock.api.generation import GenerationResponse
from penstock.api.job import Job
from penstock.api.listing import list_page, read_page
from penstock.api.parsing import in_terms_of
from penstock.api.resolve import check_model_name
from penstock.api.responses.items import Item, parse_items
from penstock.api.responses.parsing import parse_response
from penstock.api.responses.read import response_job
from penstock.api.responses.references import referenced, with_items
from penstock.api.responses.schema import InputFields, ResponsesFields
from penstock.api.responses.tools import ToolNames
from penstock.api.responses.translate import NAMES, chat_of_input, told_back
from penstock.api.responses.writer import ResponsesWriter
from penstock.api.service import Service
from penstock.core.errors import InvalidParameter
from penstock.http.answers import json_response
from penstock.storage.errors import StorageOff
from penstock.storage.pagination import PageRequest
from penstock.storage.responses import ResponseStore, StoredResponse

Fields = TypeVar("Fields", bound=InputFields)

_MOST_LISTED = 100
_USUALLY_LISTED = 20
# What a query may say that changes nothing.
_NEUTRAL_QUERY = {"stream": "false", "include_obfuscation": "false", "starting_after": "", "include": ""}
_STORAGE_OFF = "nothing is stored here, since the server has no data directory; send the whole conversation."


class _Prepared(msgspec.Struct, frozen=True):
    """What is known of a response before it is computed."""

    writer: ResponsesWriter
    items: list[dict[str, Any]]
    owner: str


class _Running:
    """A response that is being computed, as an ASGI response that can be found meanwhile."""

    def __init__(
        self,
        generation: GenerationResponse,
        prepared: "_Prepared",
        others: "dict[str, _Running]",
    ) -> None:
        self.writer = prepared.writer
        self.items = prepared.items
        self.owner = prepared.owner
        self._generation = generation
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs until the response is complete or the client has gone."""
        self._others[self.writer.id] = self
        try:
            await self._generation(scope, receive, send)
        finally:
            # The same response may have been gone on with here meanwhile.
            if self._others.get(self.writer.id) is self:
                del self._others[self.writer.id]

    def cancel(self) -> bool:
        """End it with what there is; False where it ends anyhow."""
        stopped = self._generation.stop()
        if stopped:
            self.writer.cancel()
        return stopped


RunningResponses = dict[str, _Running]


class ResponsesApi:
    """The endpoints in the form of OpenAI's Responses API."""

    def __init__(
        self, service: Service, store: ResponseStore | None, running: "RunningResponses | None" = None
    ) -> None:
        """`running` are the responses that are being computed, of all models of a server; by default of this one."""
        self._service = service
        self._store = store
        self._running: RunningResponses = {} if running is None else running

    def routes(self) -> list[Route]:
        """The routes of requests to a model."""
        return [
            Route("/v1/responses", self.create, methods=["POST"]),
            Route("/v1/responses/input_tokens", self.input_tokens, methods=["POST"]),
        ]

    def kept_routes(self) -> list[Route]:
        """The routes of responses that there are, whichever model has made them."""
        return [
            Route("/v1/responses/{id}", self.one, methods=["GET", "DELETE"]),
            Route("/v1/responses/{id}/cancel", self.cancel, methods=["POST"]),
            Route("/v1/responses/{id}/input_items", self.input_items, methods=["GET"]),
        ]

    async def create(self, request: Request) -> Response | _Running:
        """`POST /v1/responses`"""
        prepared: list[_Prepared] = []

        async def prepare(body: bytes) -> tuple[Job, Callable[[Job], ResponsesWriter]]:
            job, write, items = await self._prepare(body, owner)

            def writing(job: Job) -> ResponsesWriter:
                prepared.append(_Prepared(write(job), items, owner))
                return prepared[0].writer

            return job, writing

        owner = tenant_of(request).name
        answer = await self._service.generate(request, "responses", prepare)
        return _Running(answer, prepared[0], self._running) if isinstance(answer, GenerationResponse) else answer

    async def input_tokens(self, request: Request) -> Response:
        """`POST /v1/responses/input_tokens`: how many tokens a prompt has."""
        body, reader = await self._service.read(request), self._service.reading.reader()
        fields = await self._service.reading.beside(len(body), parse_response, body, reader, InputFields)
        fields, earlier, size = await self._complete(fields, tenant_of(request).name)
        tokens = await self._service.reading.beside(len(body) + size, self._count, fields, earlier, reader)
        return json_response({"object": "response.input_tokens", "input_tokens": tokens}, ignored=reader.ignored)

    async def one(self, request: Request) -> Response:
        """`GET` and `DELETE /v1/responses/{id}`"""
        response_id, owner = request.path_params["id"], tenant_of(request).name
        if request.method == "DELETE":
            return await self._delete(response_id, owner)
        for name, value in request.query_params.multi_items():
            if name not in _NEUTRAL_QUERY:
                raise InvalidParameter(name[:80], "is not a parameter of a response; leave it out.")
            if value != _NEUTRAL_QUERY[name]:
                raise InvalidParameter(name, "is not supported; a stored response is returned whole.")
        running = self._find(response_id, owner)
        if running is not None:
            return json_response(running.writer.response())
        return Response((await self._stored(response_id, owner)).response, media_type="application/json")

    async def cancel(self, request: Request) -> Response:
        """`POST /v1/responses/{id}/cancel`: of one that is being streamed."""
        response_id, owner = request.path_params["id"], tenant_of(request).name
        running = self._find(response_id, owner)
        if running is not None and running.cancel():
            return json_response(running.writer.response())
        if running is None:
            await self._stored(response_id, owner)
        raise InvalidParameter(
            "response_id", "the response has ended; only one that is being computed can be cancelled."
        )

    async def input_items(self, request: Request) -> Response:
        """`GET /v1/responses/{id}/input_items`"""
        page = read_page(request, usual=_USUALLY_LISTED, most=_MOST_LISTED, others=("order",))
        response_id, owner = request.path_params["id"], tenant_of(request).name
        running = self._find(response_id, owner)
        items = (
            msgspec.json.decode((await self._stored(response_id, owner)).input) if running is None else running.items
        )
        return json_response(_page(items if page.ascending else items[::-1], page))

    async def _prepare(
        self, body: bytes, owner: str
    ) -> tuple[Job, Callable[[Job], ResponsesWriter], list[dict[str, Any]]]:
        reader = self._service.reading.reader()
        fields = await self._service.reading.beside(len(body), parse_response, body, reader, ResponsesFields)
        store = self._store if fields.store is not False else None
        if fields.store and store is None:
            raise InvalidParameter("store", _STORAGE_OFF)
        if store is not None and store.condition.failure is not None:
            # Nothing is promised that cannot be kept. A request that does not ask for storage is served all the same.
            if fields.store:
                store.condition.check()
            store = None
        fields, earlier, size = await self._complete(fields, owner)
        job, items, names = await self._service.reading.beside(
            len(body) + size,
            response_job,
            fields,
            partial(_items, earlier),
            reader,
            self._service.reading,
            self._service.engine.model,
        )
        if store is not None or fields.previous_response_id is not None:
            # It goes on with a conversation, or may be gone on with.
            job = kept_as_conversation(job, self._service.engine.model)
        keep = None if store is None else lambda response: store.keep(response, items, owner)
        name = self._service.engine.model.name
        back = told_back(fields, store is not None)
        table = self._service.reading.table
        return job, lambda job: ResponsesWriter(job, name, table, back, names, keep), items

    async def _complete(self, fields: Fields, owner: str) -> tuple[Fields, list[StoredResponse], int]:
        """The fields with the items that they refer to, the responses that they continue, and the bytes of both."""
        wanted = referenced(fields.input)
        size = 0
        if wanted:
            if self._store is None:
                raise InvalidParameter(next(iter(wanted.values())), _STORAGE_OFF)
            found = await self._store.items(wanted, owner)
            size = sum(len(msgspec.json.encode(item)) for item in found.values())
            fields = replace(fields, input=with_items(fields.input, found))
        if fields.previous_response_id is None:
            return fields, [], size
        if self._store is None:
            raise InvalidParameter("previous_response_id", _STORAGE_OFF)
        earlier = await self._store.conversation(fields.previous_response_id, owner)
        return fields, earlier, size + sum(response.size for response in earlier)

    def _count(self, fields: InputFields, earlier: list[StoredResponse], reader: FieldReader) -> int:
        for name in ("prompt_cache_key", "prompt_cache_retention"):
            if getattr(fields, name) is not None:
                reader.ignore(name)
        items, names = parse_items(fields.input, reader), ToolNames(fields.tools or ())
        chat = chat_of_input(fields, names, _items(earlier), items)
        with in_terms_of((*names.places, *NAMES)):
            check_model_name(fields.model, self._service.engine.model)
            return len(self._service.reading.resolver.chat_prompt(chat))

    def _find(self, response_id: str, owner: str) -> _Running | None:
        """The response if it is being computed. One that has ended may still be on its way to the client."""
        running = self._running.get(response_id)
        return None if running is None or running.owner != owner or running.writer.ended else running

    async def _delete(self, response_id: str, owner: str) -> Response:
        if self._find(response_id, owner) is not None:
            raise InvalidParameter("response_id", "the response is still being computed; cancel it first.")
        if self._store is None or not await self._store.delete(response_id, owner):
            raise self._not_found(response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def _stored(self, response_id: str, owner: str) -> StoredResponse:
        found = None if self._store is None else await self._store.get(response_id, owner)
        if found is None:
            raise self._not_found(response_id)
        return found

    def _not_found(self, response_id: str) -> ResponseNotFound | StorageOff:
        if self._store is None:
            return StorageOff(f"response_id: {_STORAGE_OFF}")
        return ResponseNotFound(f"No response {response_id[:80]!r} is stored here (any more).", param="response_id")


def _items(earlier: list[StoredResponse]) -> list[Item]:
    """The items of responses that were kept. Their fields were told of when they came."""
    return parse_items([item for response in earlier for item in response.items()], FieldReader())


def _page(items: list[dict[str, Any]], page: PageRequest) -> dict[str, Any]:
    start = 0
    if page.after is not None:
        places = [index for index, item in enumerate(items) if item["id"] == page.after]
        if not places:
            raise InvalidParameter("after", f"no item has the id {page.after[:80]!r}.")
        start = places[0] + 1
    end = start + page.limit
    return list_page(items[start:end], end < len(items))
