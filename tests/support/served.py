"""A server over HTTP whose engine is scripted, as fixtures for the folders of tests that take them in."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from penstock.core.sampling import SamplingDefaults
from penstock.server.app import create_app
from penstock.storage.store import Store
from penstock.text.chat_template import ChatTemplate
from penstock.text.tokenizer import Tokenizer, load_tokenizer
from support.documented import described_client
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.tokenizers_made import add_bos, make_raw, save

REPLY = "Hello, wörld 👩‍🚀!"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}"
    "{% if shout is defined %}SHOUT{% endif %}"
)
BODY_LIMIT = 200_000


@dataclass
class Served:
    """A running server and its parts."""

    url: str
    http: httpx.Client
    engine: ScriptedEngine
    tokenizer: Tokenizer

    def complete(self, **fields: object) -> httpx.Response:
        return self.http.post("/v1/completions", json={"prompt": "the fox", "max_tokens": 100, **fields})

    def chat(self, **fields: object) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}], **fields})


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(save(add_bos(make_raw("byte_level")), tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def scripted_server(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    engine = ScriptedEngine(tokenizer.table, tokenizer.encode(REPLY, False), aliases=("alias",))
    store = Store.open(tmp_path_factory.mktemp("data"))
    app = create_app(
        engine,
        tokenizer,
        template=ChatTemplate(TEMPLATE),
        defaults=SamplingDefaults(temperature=0.6, top_k=20),
        store=store,
        max_body_bytes=BODY_LIMIT,
    )
    with (
        contextlib.closing(store),
        running(app) as url,
        described_client(url) as http,
    ):
        yield Served(url, http, engine, tokenizer)


@pytest.fixture
def served(scripted_server: Served) -> Served:
    """The module's server, its engine's script as at first."""
    engine = scripted_server.engine
    engine.calls.clear()
    engine.finish, engine.error, engine.unavailable, engine.before = "stop", None, None, None
    engine.stop_reason = engine.kept = engine.code = None
    engine.dropped = 0
    return scripted_server
