"""The API's description: complete, valid, and true. That answers are as it says, all tests of this folder check."""

from typing import Any

import jsonschema
import pytest
from starlette.routing import Route

from penstock.server.app import create_app
from penstock.server.endpoints import ENDPOINTS


def test_every_route_is_described_and_nothing_else(served: Any) -> None:
    app = create_app(served.engine, served.tokenizer)
    routes = {
        (method, route.path.replace(":path}", "}"))
        for route in app.routes
        if isinstance(route, Route) and route.include_in_schema
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS} == routes


def test_the_document_is_served(served: Any) -> None:
    document = served.http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(ENDPOINTS)
    chat = document["components"]["schemas"]["ChatFields"]
    assert chat["required"] == ["messages"]
    assert chat["additionalProperties"] is False
    assert {"response_format", "tools", "logprobs", "seed"} <= chat["properties"].keys()
    # What has no effect says so, and which values it may have.
    assert chat["properties"]["suffix"]["enum"] == [None, ""]


def test_every_answer_and_every_event_is_described(served: Any) -> None:
    document = served.http.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for media, content in operation["responses"]["200"]["content"].items():
                if media == "application/json" and path != "/openapi.json":
                    assert content["schema"].keys() & {"$ref", "anyOf", "items"}, path
    streamed = document["paths"]["/v1/responses"]["post"]["responses"]["200"]["content"]["text/event-stream"]
    kinds = streamed["schema"]["properties"]["data"]["contentSchema"]["discriminator"]["mapping"]
    assert {"response.created", "response.output_text.delta", "response.completed"} <= kinds.keys()


def test_the_page_is_served_and_needs_nothing_else(served: Any) -> None:
    answer = served.http.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    for endpoint in ENDPOINTS:
        assert f"<code>{endpoint.path}</code>" in answer.text
    assert "<script" not in answer.text
    # Of a stream, the types of its events, and what ends it.
    assert '<a href="#ChatChunk">ChatChunk</a>' in answer.text and "<code>[DONE]</code>" in answer.text
    assert "http" not in answer.text.replace("http-equiv", "")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_each_field_is_described(served: Any, path: str) -> None:
    document = served.http.get("/openapi.json").json()
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    properties = document["components"]["schemas"][body["$ref"].rpartition("/")[2]]["properties"]
    # A field that the description does not have is refused by name.
    fields = {"messages": [{"role": "user", "content": "x"}], "prompt": "x"}
    own = {name: value for name, value in fields.items() if name in properties}
    for name in ("no_such_field", *properties):
        answer = served.http.post(path, json={**own, name: 1 if name not in properties else own.get(name)})
        assert answer.status_code == (400 if name not in properties else 200), (name, answer.text)


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/v1/responses/{id}/input_items"])
def test_what_a_list_may_be_asked_is_accepted(served: Any, path: str) -> None:
    described = next(each for each in ENDPOINTS if (each.method, each.path) == ("GET", path)).query
    values = {"limit": "5", "order": "asc", "purpose": "batch"}
    path = path.replace("{id}", served.http.post("/v1/responses", json={"input": "hi"}).json()["id"])
    for name in described.keys() & values.keys():
        assert served.http.get(path, params={name: values[name]}).status_code == 200
    for name in values.keys() - described.keys():
        assert served.http.get(path, params={name: values[name]}).status_code == 400
