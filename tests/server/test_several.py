"""Several models in one server, whose engines are scripted: which one a request gets, and what is told of each."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.core.errors import InvalidParameter
from penstock.core.events import LoadSnapshot
from penstock.core.sourced import Sourced
from penstock.core.vectors import Classes, VectorModules
from penstock.http.body import BodyReader
from penstock.observability.accounts import Accounts
from penstock.routing.told import MadeFor, ReplicaState
from penstock.server.admin import create_admin_app
from penstock.server.app import create_app
from penstock.server.choosing import Choice
from penstock.server.served import Model
from penstock.storage.store import Store
from penstock.text.chat_template import ChatTemplate
from penstock.text.tokenizer import Tokenizer
from support.documented import described_client
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.served import TEMPLATE
from support.waiting import until

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@dataclass
class Several:
    """A server with a chat model, an encoder and another chat model."""

    http: httpx.Client
    chat: ScriptedEngine
    encoder: ScriptedEngine
    other: ScriptedEngine
    accounts: list[Accounts]

    @property
    def engines(self) -> tuple[ScriptedEngine, ...]:
        return self.chat, self.encoder, self.other

    def asked(self) -> list[int]:
        """How many requests each engine has got."""
        return [len(engine.calls) for engine in self.engines]

    def message(self, path: str, body: object, status: int = 400) -> str:
        answer = self.http.post(path, json=body)
        assert answer.status_code == status, answer.text
        return str(answer.json()["error"]["message"])


@pytest.fixture(scope="module")
def server(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    reply = tokenizer.encode("Hello!", False)
    engines = [
        ScriptedEngine(tokenizer.table, reply, name="chat", aliases=("gpt",)),
        ScriptedEngine(None, [], name="encoder", generates=False),
        ScriptedEngine(tokenizer.table, reply[:1], name="other", max_model_len=64),
    ]
    accounts, template = [Accounts(engine) for engine in engines], ChatTemplate(TEMPLATE)
    models = [
        Model(engine=engine, tokenizer=tokenizer, template=template, accounts=own)
        for engine, own in zip(engines, accounts, strict=True)
    ]
    store = Store.open(tmp_path_factory.mktemp("data"))
    app = create_app(engines[0], tokenizer, template=template, accounts=accounts[0], store=store, beside=models[1:])
    with contextlib.closing(store), running(app) as url, described_client(url) as http:
        yield Several(http, *engines, accounts)


@pytest.fixture
def several(server: Several) -> Iterator[Several]:
    """The module's server, whose engines have got nothing yet."""
    for engine in server.engines:
        engine.calls.clear()
    yield server
    for engine in server.engines:
        engine.unavailable = None


def test_a_request_gets_the_model_that_it_names(several: Several) -> None:
    for name, content in (("chat", "Hello!"), ("gpt", "Hello!"), ("other", "H")):
        answer = several.http.post("/v1/chat/completions", json={"model": name, **CHAT}).json()
        assert answer["choices"][0]["message"]["content"] == content
    vectors = several.http.post("/v1/embeddings", json={"model": "encoder", "input": "a"}).json()
    assert vectors["model"] == "encoder" and several.asked() == [2, 1, 1]
    # Longer than what is read on the event loop.
    long = {"model": "other", "messages": [{"role": "user", "content": "a" * 300_000}]}
    assert "at most 63 fit" in several.message("/v1/chat/completions", long)


def test_without_a_name_it_gets_one_that_is_made_for_the_endpoint(several: Several) -> None:
    assert several.http.post("/v1/chat/completions", json=CHAT).json()["model"] == "chat"
    assert several.http.post("/v1/embeddings", json={"input": "a"}).json()["model"] == "encoder"
    anthropic = {"model": "other", "max_tokens": 5, **CHAT}
    assert several.http.post("/v1/messages", json=anthropic).json()["model"] == "other"
    assert several.http.post("/v1/responses", json={"input": "a", "model": "other"}).json()["model"] == "other"
    assert several.http.post("/tokenize", json={"prompt": "a", "model": "other"}).json()["max_model_len"] == 64
    assert several.http.post("/tokenize", json={"prompt": "a"}).json()["max_model_len"] == 256
    assert several.asked() == [1, 1, 2]


def test_translations_are_for_the_encoder_decoder(several: Several) -> None:
    before = several.other.model
    languages = {"en_XX": 70, "de_DE": 71}
    several.other.model = msgspec.structs.replace(before, sourced=Sourced(64, 2, languages=languages))
    try:
        asked = {"q": "a", "source": "en", "target": "de"}
        assert several.http.post("/translate", json=asked).json() == {"translatedText": "H"}
        assert [each["code"] for each in several.http.get("/languages").json()] == ["en", "de"]
        assert several.asked() == [0, 0, 1]
        refused = several.http.post("/translate", json={**asked, "model": "chat"})
        assert refused.json()["error"] == (
            "model: 'chat' cannot answer at /translate: it generates; ask /v1/chat/completions or /v1/completions; "
            "'other' can."
        )
        assert several.message("/v1/chat/completions", {"model": "other", **CHAT}) == (
            "model: 'other' cannot answer at /v1/chat/completions: it makes texts of others; ask /v1/completions or "
            "/translate; 'chat' can."
        )
        assert several.http.post("/v1/completions", json={"model": "other", "prompt": "a"}).status_code == 200
    finally:
        several.other.model = before
    assert several.http.get("/languages").json() == []


def test_who_serves_what_is_told_where_a_request_goes_wrong(several: Several) -> None:
    unknown = "The model 'gpt-9' does not exist here; this server serves 'chat', 'encoder' and 'other'."
    for path in ("/v1/chat/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/tokenize"):
        assert several.message(path, {"model": "gpt-9"}, 404) == unknown
    assert several.http.get("/v1/models/gpt-9").json()["error"]["message"] == unknown
    assert several.message("/v1/chat/completions", {"model": "encoder", **CHAT}) == (
        "model: 'encoder' cannot answer at /v1/chat/completions: it makes vectors of texts; ask /v1/embeddings, "
        "/v1/rerank or /v1/score; 'chat' and 'other' can."
    )
    # What is no request is told by the first model, as ever.
    assert (
        "valid JSON"
        in several.http.post("/v1/chat/completions", content=b"{", headers={"content-type": "application/json"}).json()[
            "error"
        ]["message"]
    )
    assert "model" in several.message("/v1/chat/completions", {"model": 7, **CHAT})
    assert several.http.post("/v1/completions", content=b"a").status_code == 415
    # Where none can, the one that is asked says what it does.
    assert several.http.get("/languages").json() == several.http.get("/languages?model=other").json() == []
    assert several.asked() == [0, 0, 0]


def test_the_models_are_listed(several: Several) -> None:
    cards = several.http.get("/v1/models").json()["data"]
    assert [(card["id"], card["root"], card["max_model_len"]) for card in cards] == [
        ("chat", "chat", 256),
        ("gpt", "chat", 256),
        ("encoder", "encoder", 256),
        ("other", "other", 64),
    ]
    assert several.http.get("/v1/models/other").json() == cards[-1]


def test_one_that_fails_does_not_take_the_others_along(several: Several) -> None:
    several.encoder.unavailable = "The engine has failed."
    assert several.http.post("/v1/chat/completions", json=CHAT).status_code == 200
    assert several.message("/v1/embeddings", {"model": "encoder", "input": "a"}, 503) == "The engine has failed."
    ready = several.http.get("/health/ready")
    states = {"chat": "ready", "encoder": "The engine has failed.", "other": "ready"}
    assert ready.status_code == 200 and ready.json()["models"] == states
    assert several.http.get("/health/ready?model=gpt").json() == {"status": "ready", "storage": "working"}
    assert several.http.get("/health/ready?model=encoder").status_code == 503
    assert several.http.get("/health/ready?model=none").status_code == 404
    several.chat.unavailable = several.other.unavailable = "The engine is away."
    assert several.http.get("/health/ready").json()["error"]["message"] == "The engine is away."
    assert several.message("/v1/embeddings", {"model": "encoder", "input": "a"}, 503) == "The engine is away."


def test_each_is_probed(several: Several) -> None:
    probe = several.http.get("/health/deep").json()
    assert {name: each["status"] for name, each in probe["models"].items()} == {
        "chat": "generating",
        "encoder": "encoding",
        "other": "generating",
    }
    assert several.http.get("/health/deep?model=encoder").json()["status"] == "encoding"


def test_figures_say_whose_they_are(several: Several) -> None:
    several.http.post("/v1/embeddings", json={"model": "encoder", "input": "a"})
    families = text_string_to_metric_families(several.http.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples]
    ended = {
        sample.labels["model"]: sample.value
        for sample in samples
        if sample.name == "penstock_requests_total"
        and (sample.labels["endpoint"], sample.labels["outcome"]) == ("embeddings", "completed")
    }
    assert ended["encoder"] >= 1 and ended["chat"] == ended["other"] == 0
    unlabelled = {sample.name for sample in samples if "model" not in sample.labels}
    assert unlabelled == {
        "penstock_batch_lines_running",
        "penstock_batch_lines_total",
        "penstock_uptime_seconds",
        "penstock_process_cpu_seconds_total",
        "penstock_process_resident_bytes",
        "penstock_storage_failing",
        "penstock_storage_failures_total",
    }
    names = ["chat", "encoder", "other"]
    assert several.http.get("/v1/stats").json()["models"] == names
    for name in names:
        stats = several.http.get("/v1/stats", params={"model": name}).json()
        assert stats["model"] == name and stats["models"] == names
    assert several.http.get("/v1/stats?model=none").status_code == 404


def test_requests_are_told_with_their_models(several: Several) -> None:
    chat = several.http.post("/v1/chat/completions", json={"model": "other", **CHAT})
    several.http.post("/v1/embeddings", json={"model": "encoder", "input": "a"})
    listed = several.http.get("/v1/requests?limit=2").json()["data"]
    assert [(each["model"], each["endpoint"]) for each in listed] == [("encoder", "embeddings"), ("other", "chat")]
    explained = several.http.get(f"/v1/requests/{chat.headers['x-request-id']}/explain").json()
    assert explained["model"] == "other" and explained["outcome"] == "completed"
    slowest = several.http.get("/v1/requests?order=slowest").json()["data"]
    assert [each["seconds"] for each in slowest] == sorted((each["seconds"] for each in slowest), reverse=True)


def test_responses_of_all_models_are_kept_in_one_place(several: Several) -> None:
    first = several.http.post("/v1/responses", json={"model": "other", "input": "a"}).json()
    assert several.http.get(f"/v1/responses/{first['id']}").json()["model"] == "other"
    second = {"model": "chat", "input": "b", "previous_response_id": first["id"]}
    assert several.http.post("/v1/responses", json=second).json()["model"] == "chat"


def test_lines_of_a_batch_get_the_models_that_they_name(several: Several) -> None:
    wanted: list[tuple[str, dict[str, Any]]] = [
        ("1", {"model": "chat"}),
        ("2", {"model": "other"}),
        ("3", {"model": "x"}),
    ]
    wanted.append(("4", {"model": "encoder"}))
    lines = [
        {"custom_id": number, "method": "POST", "url": "/v1/chat/completions", "body": {**model, **CHAT}}
        for number, model in wanted
    ]
    upload = several.http.post(
        "/v1/files",
        files={"file": ("in.jsonl", "\n".join(map(json.dumps, lines)).encode())},
        data={"purpose": "batch"},
    ).json()
    body = {"input_file_id": upload["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    # A line for an engine that is away waits for it, while others go on.
    several.other.unavailable = "The engine has failed."
    batch = several.http.post("/v1/batches", json=body).json()["id"]

    def now() -> dict[str, Any]:
        return several.http.get(f"/v1/batches/{batch}").json()

    until(lambda: now()["request_counts"]["completed"] == 1 and now()["request_counts"]["failed"] == 2)
    several.other.unavailable = None
    until(lambda: now()["status"] == "completed")

    def answers(kind: str) -> dict[str, Any]:
        text = several.http.get(f"/v1/files/{now()[kind]}/content").text
        found = [json.loads(line) for line in text.splitlines()]
        return {each["custom_id"]: each["response"] for each in found}

    assert {number: each["body"]["model"] for number, each in answers("output_file_id").items()} == {
        "1": "chat",
        "2": "other",
    }
    assert {number: each["status_code"] for number, each in answers("error_file_id").items()} == {"3": 404, "4": 400}


def test_gateways_are_told_of_all(several: Several) -> None:
    several.encoder.load = LoadSnapshot(running=1, waiting=1)
    state = msgspec.json.decode(several.http.get("/v1/replica").content, type=ReplicaState)
    assert state.models == ("chat", "gpt", "encoder", "other") and not state.why
    assert state.running == several.chat.load.running + 1 + several.other.load.running
    assert state.described("gpt") == ("chat", 256) and state.described("other") == ("other", 64)
    chat, encoder = MadeFor("chat"), MadeFor("encoder")
    # Vectors give scores too, by a detour.
    assert state.made_for == {
        "generate": chat, "converse": chat, "embed": encoder, "score": MadeFor("encoder", 1),
    }  # fmt: skip
    several.encoder.unavailable = "The engine has failed."
    assert not msgspec.json.decode(several.http.get("/v1/replica").content, type=ReplicaState).why


def test_the_operator_names_the_model(several: Several) -> None:
    engines: Any = {engine.model.name: Pausing() for engine in several.engines}
    with running(create_admin_app(engines, [], several.accounts)) as url, httpx.Client(base_url=url) as admin:
        admin.post("/pause?model=encoder", json={"paused": True})
        admin.post("/pause", json={"paused": True, "after_steps": 3})
        assert [engine.paused for engine in engines.values()] == [[3], [0], []]
        refused = admin.post("/pause?model=none", json={"paused": True})
        assert refused.status_code == 404 and "'chat', 'encoder' and 'other'" in refused.text


class Pausing:
    """An engine that notes how it is paused."""

    def __init__(self) -> None:
        self.paused: list[int | None] = []

    def pause(self, after_steps: int | None) -> None:
        self.paused.append(after_steps)


def test_names_are_known_before_engines_are(tokenizer: Tokenizer, tmp_path: Path) -> None:
    engine, late = ScriptedEngine(tokenizer.table, [5], name="chat"), ScriptedEngine(None, [], name="late")
    late.unavailable = "The engine is still loading the model."
    beside = Model(engine=late, names=("late", "second"), tokenizer=tokenizer)
    with running(create_app(engine, tokenizer, beside=[beside])) as url, httpx.Client(base_url=url) as http:
        asked = http.post("/v1/embeddings", json={"model": "second", "input": "a"})
        assert asked.status_code == 503 and "loading" in asked.text


def test_scores_are_those_of_what_was_made_for_them(tokenizer: Tokenizer) -> None:
    classes = VectorModules("cls", (), classes=Classes(("LABEL_0",), "sigmoid"))
    engines = [
        ScriptedEngine(tokenizer.table, [5], name="chat"),
        ScriptedEngine(None, [], name="encoder", generates=False),
        ScriptedEngine(None, [], name="reranker", generates=False, vectors=classes, embedding_size=1),
    ]
    models = [Model(engine=engine, tokenizer=tokenizer) for engine in engines[1:]]
    pair, text = {"query": "a", "documents": ["b"]}, {"input": "a"}
    with running(create_app(engines[0], tokenizer, beside=models)) as url, described_client(url) as http:

        def asked(path: str, body: dict[str, Any]) -> list[int]:
            for engine in engines:
                engine.calls.clear()
            assert http.post(path, json=body).status_code == 200
            return [len(engine.calls) for engine in engines]

        assert asked("/v1/rerank", pair) == [0, 0, 1]
        assert asked("/rerank", {"query": "a", "texts": ["b"]}) == [0, 0, 1]
        assert asked("/rerank", {"query": "a", "texts": ["b"], "model": "encoder"}) == [0, 2, 0]
        assert asked("/v1/embeddings", text) == asked("/embed", {"inputs": "a"}) == [0, 1, 0]
        assert asked("/v1/rerank", {**pair, "model": "encoder"}) == [0, 2, 0]
        for path, name, body, why in (
            (
                "/v1/classify",
                "encoder",
                text,
                "it makes vectors of texts; ask /v1/embeddings, /v1/rerank or /v1/score; 'reranker' can.",
            ),
            (
                "/v1/embeddings",
                "reranker",
                text,
                "it scores pairs of texts; ask /v1/rerank, /v1/score or /v1/classify; 'chat' and 'encoder' can.",
            ),
        ):
            answer = http.post(path, json={**body, "model": name})
            assert answer.status_code == 400 and why in answer.json()["error"]["message"]
        for form, has_type in (({"texts": ["b"]}, True), ({"documents": ["b"]}, False)):
            answer = http.post("/rerank", json={"query": "a", "model": "none", **form})
            assert answer.status_code == 404 and ("error_type" in answer.json()) == has_type


@pytest.mark.parametrize(
    ("path", "unnamed", "refused"),
    [
        ("/v1/chat/completions", "chat", ["translator", "embedder", "judge", "sorter"]),
        ("/v1/completions", "chat", ["embedder", "judge", "sorter"]),
        ("/translate", "translator", ["chat", "embedder", "judge", "sorter"]),
        ("/v1/embeddings", "embedder", ["translator", "judge", "sorter"]),
        ("/embed", "embedder", ["translator", "judge", "sorter"]),
        ("/rerank", "judge", ["translator", "sorter"]),
        ("/v1/score", "judge", ["translator", "sorter"]),
        ("/v1/classify", "judge", ["translator", "chat", "embedder"]),
        ("/tokenize", "translator", []),
    ],
)
def test_endpoints_get_models_that_are_made_for_them(path: str, unnamed: str, refused: list[str]) -> None:
    made: dict[str, dict[str, Any]] = {
        "translator": {"sourced": Sourced(longest=64, start=0)},
        "chat": {},
        "embedder": {"generates": False},
        "judge": {"generates": False, "vectors": VectorModules(classes=Classes(("score",), "sigmoid"))},
        "sorter": {"generates": False, "vectors": VectorModules(classes=Classes(("good", "bad"), "softmax"))},
    }
    engines = [ScriptedEngine(None, [], name=name, **facts) for name, facts in made.items()]
    models: list[Any] = [SimpleNamespace(names=(engine.model.name,), engine=engine) for engine in engines]
    choice = Choice(models, BodyReader(100))
    assert models[choice.of_body(b"{}", path)].names == (unnamed,)
    for name in made:
        body = msgspec.json.encode({"model": name})
        if name in refused:
            with pytest.raises(InvalidParameter, match=f"'{name}' cannot answer at {path}: .*'{unnamed}'.* can"):
                choice.of_body(body, path)
        else:
            assert models[choice.of_body(body, path)].names == (name,)
