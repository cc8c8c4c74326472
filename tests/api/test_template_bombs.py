"""Chat templates that mean no good, in a model that a real server serves: each ends, within its bounds, with an error.

The model's template has all of them; the conversation says which one runs.
"""

import json
import select
import shutil
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from penstock.bundled.registry import find_bundled
from support.live_server import RunningServer, serving
from support.waiting import PATIENCE

MIB = 1 << 20
# What a template may make, and what is made on the way.
MOST_GROWTH = 450 * MIB
TEXT = "{% set s = 'a' * 8000000 %}"
HELD = "{% set ns = namespace(l=[], m=[]) %}{% for i in range(99999) %}"
TWINS = "{% set ns = namespace(l=['a'], m=['a']) %}{% for i in range(40) %}{% set ns.l = [ns.l, ns.l] %}" + (
    "{% set ns.m = [ns.m, ns.m] %}{% endfor %}"
)
BOMBS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a huge range": "{% for i in range(10**9) %}{% endfor %}",
    "a list of a huge range": "{{ range(10**9)|list|length }}",
    "a long text": "{{ 'a' * 10**9 }}",
    "texts that are kept": TEXT + HELD + "{% set ns.l = ns.l + [s ~ i] %}{% endfor %}",
    "texts that are cut and kept": TEXT + HELD + "{% set ns.l = ns.l + [s[i:]] %}{% endfor %}",
    "texts in dictionaries": TEXT + HELD + "{% set ns.l = dict(a=ns.l, b=s ~ i) %}{% endfor %}",
    "many texts of a filter": "{{ (['a' * 1000000] * 3000)|map('upper')|list|length }}",
    "many lists of a filter": "{{ (['a ' * 100000] * 3000)|map('list')|list|length }}",
    "a text in many pieces": "{{ ('a ' * 3000000).split()|length }}",
    "words of a text": "{{ ('a ' * 3000000)|wordcount }}",
    "joins of joins": HELD + "{% set ns.t = (ns.t or 'a').join([ns.t or 'a'] * 9) %}{% endfor %}",
    "twins compared": TWINS + "{{ ns.l == ns.m }}",
    "tuples as keys": HELD + "{% set ns.t = (ns.t or (1,)) + (1,) %}{% endfor %}{{ {ns.t: 1} }}",
    "a long sort": "{{ (range(99999)|list * 100)|sort|length }}",
    "long groups": "{{ (range(99999)|list * 50)|groupby('real')|list|length }}",
    "a macro in itself": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "a block that grows": "{% set x %}{% for i in range(99999) %}" + "x" * 1000 + "{% endfor %}{% endset %}",
    "an endless output": "{% for i in range(99999) %}" + "x" * 1000 + "{% endfor %}",
    "a large number": "{% set ns = namespace(n=9) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "a class": "{{ ''.__class__.__mro__ }}",
    "a class by its name": "{{ ''['__class__']['__subclasses__']() }}",
    "a class by a filter": "{{ (''|attr('__class__')).__mro__[1] }}",
    "a class by a filter of many": "{{ (['']|map(attribute='__class__')|first).__name__.__class__() }}",
    "globals": "{{ raise_exception.__globals__['json'] }}",
    "globals of a macro": "{% macro f() %}{% endmacro %}{{ f._func.__globals__.x }}",
    "the environment": "{{ self._TemplateReference__context.environment.from_string('x') }}",
    "a format's attribute": "{{ '{0.__class__.__mro__}'.format('')[5] ~ nothing.here }}",
    "a format's width": "{{ '{:>1000000000}'.format('x') }}",
    "a percent's width": "{{ '%1000000000s' % 'x' }}",
    "imports": "{% import 'os' as os %}",
}  # fmt: skip
# It takes a second or more.
LONGEST = "twins compared"
PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    bundled = find_bundled("haiku")
    assert bundled is not None
    model = tmp_path_factory.mktemp("model") / "haiku"
    shutil.copytree(bundled.directory, model)
    branches = [
        "{% if messages[0].content == " + json.dumps(name) + " %}" + source + "{% endif %}"
        for name, source in BOMBS.items()
    ]
    (model / "chat_template.jinja").write_text("".join(branches) + PLAIN)
    with serving(model, "--data-dir", "off", "--threads", "1", "--kv-cache-memory", "64MiB") as running:
        assert ask(running, "rain").status_code == 200
        yield running


def body_of(name: str, **fields: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": name}], "max_tokens": 2, **fields}


def ask(server: RunningServer, name: str, **fields: object) -> httpx.Response:
    return httpx.post(f"{server.base}/v1/chat/completions", json=body_of(name, **fields), timeout=PATIENCE)


def test_each_ends_with_an_error_and_little_memory(server: RunningServer) -> None:
    for name in BOMBS.keys() - {LONGEST}:
        with server.growth() as grown:
            answer = ask(server, name)
        assert answer.status_code == 400, f"{name}: {answer.text}"
        error = answer.json()["error"]
        assert error["param"] == "messages" and "chat template" in error["message"], name
        assert " at 0x" not in error["message"] and "/" not in error["message"], error["message"]
        assert grown[0] < MOST_GROWTH, f"{name}: {grown[0] / MIB:.0f} MiB more"
    assert ask(server, "rain").status_code == 200


def test_others_are_served_while_one_runs(server: RunningServer) -> None:
    content = json.dumps(body_of(LONGEST)).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", int(server.base.rsplit(":", 1)[1])), timeout=PATIENCE) as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(content) + content)
        assert ask(server, "rain").status_code == 200
        assert not select.select([connection], [], [], 0)[0], "it has waited for the template"
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_a_request_brings_no_template(server: RunningServer) -> None:
    for fields in ({"chat_template": PLAIN}, {"chat_template_kwargs": {"chat_template": PLAIN}}):
        answer = ask(server, "rain", **fields)
        assert answer.status_code == 400 and "chat_template" in answer.json()["error"]["param"]
