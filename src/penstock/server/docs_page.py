"""The API's description for people: a page made of the OpenAPI document, without scripts and other servers."""

from html import escape
from typing import Any

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
code, pre { font: 14px/1.4 ui-monospace, monospace; }
summary { cursor: pointer; padding: .4rem 0; }
details { border-top: 1px solid #ddd; padding: .2rem 0; }
.method { display: inline-block; min-width: 4.5rem; font-weight: 600; }
.summary { color: #555; margin-left: .6rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem; }
td, th { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0; border-top: 1px solid #eee; }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd; } .summary { color: #aaa; } }
"""


def page(document: dict[str, Any]) -> str:
    """The page that describes the API, as HTML, from an OpenAPI document."""
    operations = [
        _operation(path, method, operation, document)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code>'
        f'<span class="summary">{escape(schema.get("description", "").partition(chr(10))[0])}</span></summary>'
        f"{_fields(schema)}</details>"
        for name, schema in sorted(document["components"]["schemas"].items())
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Penstock</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>Penstock {escape(document['info']['version'])}</h1>"
        '<p>For programs: <a href="openapi.json">openapi.json</a></p>'
        f"<h2>Endpoints</h2>{''.join(operations)}<h2>Types</h2>{''.join(schemas)}</body></html>"
    )


def _operation(path: str, method: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    parts = []
    if operation["parameters"]:
        rows = "".join(
            f"<tr><td><code>{escape(each['name'])}</code></td><td>{_type(each['schema'])}</td>"
            f"<td>in the {each['in']}</td></tr>"
            for each in operation["parameters"]
        )
        parts.append(f"<h4>Parameters</h4><table>{rows}</table>")
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        schema = content["schema"]
        name = schema.get("$ref", "").rpartition("/")[2]
        parts.append(f"<h4>Body, {escape(media)}</h4>{_fields(document['components']['schemas'].get(name, schema))}")
    rows = "".join(
        f"<tr><td>{status}</td><td>{escape(answer['description'])}</td>"
        f"<td>{_media(answer.get('content', {}))}</td></tr>"
        for status, answer in operation["responses"].items()
    )
    parts.append(f"<h4>Answers</h4><table>{rows}</table>")
    return (
        f'<details><summary><span class="method">{method.upper()}</span><code>{escape(path)}</code>'
        f'<span class="summary">{escape(operation["summary"])}</span></summary>{"".join(parts)}</details>'
    )


def _media(content: dict[str, Any]) -> str:
    return "<br>".join(
        f"{escape(media)}: {_event(each['schema']) if media == 'text/event-stream' else _type(each['schema'])}"
        for media, each in content.items()
    )


def _event(schema: dict[str, Any]) -> str:
    """What the data of a stream's events is."""
    data = schema["properties"]["data"]
    return " or ".join(
        f"<code>{escape(each['const'])}</code>" if "const" in each else _type(each["contentSchema"])
        for each in data.get("anyOf", [data])
    )


def _fields(schema: dict[str, Any]) -> str:
    if "properties" not in schema:
        return f"<p>{_type(schema)}</p>"
    required = set(schema.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code>{' *' if name in required else ''}</td><td>{_type(each)}</td></tr>"
        for name, each in schema["properties"].items()
    )
    note = "<p>* must be there</p>" if required else ""
    return f"<table>{rows}</table>{note}"


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words, with links to the types it refers to."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(map(_type, schema[several]))
    if "enum" in schema:
        return " or ".join(f"<code>{escape(repr(value))}</code>" for value in schema["enum"])
    kind = str(schema.get("type", "anything"))
    if kind == "array" and isinstance(schema.get("items"), dict):
        return f"list of {_type(schema['items'])}"
    limits = [f"{word} {schema[key]}" for key, word in _LIMITS.items() if key in schema]
    return escape(", ".join([kind, *limits]))


_LIMITS = {"minimum": "from", "maximum": "to", "minLength": "at least", "maxLength": "at most", "pattern": "like"}
