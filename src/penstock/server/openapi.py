"""The API's description for programs: an OpenAPI 3.1 document, made from the types that bodies are parsed into."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.api.answers import ErrorAnswer
from penstock.api.fields import FieldRules, HintField

_REFERENCE = "#/components/schemas/{name}"
_JSON = "application/json"
# What any endpoint may answer: the path or method is wrong, the head too long, the server not ready or at its bound.
_ALWAYS = (400, 404, 405, 431, 500, 503)
# What is answered where the server has keys.
_WITH_KEYS = (401, 429)
_WITH_BODY = (413, 415)
_MEANINGS = {
    200: "The answer.",
    400: "The request cannot be served as it is; the message says what was wrong and what would be accepted.",
    401: "The server has API keys, and the request has none of them.",
    403: "A browser sent this for a page of another origin.",
    404: "There is no such thing here.",
    405: "The path does not take this method.",
    409: "It cannot be done in the state that this is in.",
    413: "The body is longer than the server reads.",
    415: "The body is not of the type that is read here.",
    422: "A field cannot be used as it is; the message says why.",
    429: "This API key already has the most requests under way that it may have.",
    431: "The request's headers are longer than the server reads.",
    500: "The server failed on this request.",
    503: "The server cannot serve this now; try again later.",
    507: "There is no room on the server's disk.",
    504: "The request was not finished in the time that it had.",
    529: "The server cannot serve this now; try again later.",
}


class DescribedEndpoint(msgspec.Struct, frozen=True):
    """One method of one path.

    Attributes:
        method: in capitals.
        path: with parameters in braces.
        summary: what it does, in a few words.
        answer: the type of its answer, None where that is no JSON.
        body: the type of the request's body, None where it has none.
        rules: of the body's fields that are not implemented.
        media: the content type of the answer.
        body_media: the content type of the body.
        events: the types of the events' data, where the answer can be server-sent events instead.
        last_event: what the last event holds, where that is no JSON.
        errors: further statuses.
        error: the type of an error's body.
        query: the query's parameters, by name: their schemas.
        open: whether it needs no API key where others do.
        alias: whether it is an endpoint's other path, without the API's version.
    """

    method: str
    path: str
    summary: str
    answer: Any
    body: Any = None
    rules: FieldRules = {}
    media: str = _JSON
    body_media: str = _JSON
    events: tuple[Any, ...] = ()
    last_event: str | None = None
    errors: tuple[int, ...] = ()
    error: Any = ErrorAnswer
    query: dict[str, dict[str, Any]] = {}
    open: bool = False
    alias: bool = False


# Two ways to send a key.
_SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def document(endpoints: Sequence[DescribedEndpoint], version: str, *, keyed: bool = False) -> dict[str, Any]:
    """The whole description of the API of a release; `keyed` where the server needs API keys."""
    types = [kind for endpoint in endpoints for kind in _types(endpoint)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    described = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        if endpoint.body is not None:
            _add_rules(components[described[endpoint.body]["$ref"].rpartition("/")[2]], endpoint.rules)
        operation = paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, described)
        if endpoint.open:
            operation["security"] = []
    security: dict[str, Any] = {"security": [{name: []} for name in _SECURITY_SCHEMES]} if keyed else {}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": version},
        **security,
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SECURITY_SCHEMES},
    }


def _add_rules(schema: dict[str, Any], rules: FieldRules) -> None:
    """Fields that are hints, and those that are accepted where they ask for nothing."""
    for name, rule in rules.items():
        if isinstance(rule, HintField):
            described: dict[str, Any] = {"description": f"Accepted, and told as ignored. {rule.why}"}
        else:
            described = {"enum": [None, *rule.neutral], "description": "Has no effect."}
        schema["properties"].setdefault(name, described)


def _types(endpoint: DescribedEndpoint) -> list[Any]:
    """What an endpoint reads and writes."""
    kinds = (endpoint.body, endpoint.answer, endpoint.error, *endpoint.events)
    return [kind for kind in kinds if kind is not None]


def _event(endpoint: DescribedEndpoint, described: Mapping[Any, Any]) -> dict[str, Any]:
    """One of a stream's events, whose data is text: JSON of one of these types."""
    kinds = [described[kind] for kind in endpoint.events]
    content = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    data: dict[str, Any] = {"type": "string", "contentMediaType": _JSON, "contentSchema": content}
    if endpoint.last_event is not None:
        data = {"anyOf": [{"const": endpoint.last_event}, data]}
    return {"type": "object", "properties": {"event": {"type": "string"}, "data": data}, "required": ["data"]}


def _operation(endpoint: DescribedEndpoint, described: Mapping[Any, Any]) -> dict[str, Any]:
    answer: Any = {"type": "string"} if endpoint.answer is None else described[endpoint.answer]
    content: dict[str, Any] = {endpoint.media: {"schema": answer}}
    if endpoint.events:
        content["text/event-stream"] = {"schema": _event(endpoint, described)}
    responses: dict[str, Any] = {"200": {"description": _MEANINGS[200], "content": content}}
    statuses = {*_ALWAYS, *endpoint.errors, *(_WITH_BODY if endpoint.body is not None else ())}
    if not endpoint.open:
        statuses |= {*_WITH_KEYS}
    for status in sorted(statuses):
        responses[str(status)] = {
            "description": _MEANINGS[status],
            "content": {_JSON: {"schema": described[endpoint.error]}},
        }
    operation: dict[str, Any] = {
        "operationId": _identifier(endpoint),
        "summary": endpoint.summary,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in re.findall(r"{(\w+)}", endpoint.path)
        ]
        + [
            {"name": name, "in": "query", "required": False, "schema": schema}
            for name, schema in endpoint.query.items()
        ],
        "responses": responses,
    }
    if endpoint.body is not None:
        schema = described[endpoint.body]
        operation["requestBody"] = {"required": True, "content": {endpoint.body_media: {"schema": schema}}}
    return operation


def _identifier(endpoint: DescribedEndpoint) -> str:
    words = re.findall(r"\w+", endpoint.path.replace("v1/", ""))
    return "_".join([endpoint.method.lower(), *words, *(["alias"] if endpoint.alias else [])])
