"""Translations through a gateway: which model they get without its name, and how they are counted and refused."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import httpx
import pytest

from gateway.conftest import Gateway, Start, World, bearer, month
from penstock.access.allowances import OwnAllowances
from penstock.access.keys import Key, Keyring
from penstock.access.tenants import Bounds, Level, Permits, Tenant
from penstock.core.sourced import Sourced
from penstock.gateway.guardrail_options import Guardrail
from penstock.gateway.meters import MINUTE
from penstock.metering.meters import Meter
from penstock.metering.prices import Price
from penstock.server.app import create_app
from penstock.tenancy.statement import statement
from penstock.text.chat_template import ChatTemplate
from penstock.text.tokenizer import Tokenizer
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.scripted_http import CLOSE, Received, Step, answer, scripted, stream
from support.served import TEMPLATE, tokenizer
from support.waiting import PATIENCE, until

__all__ = ["tokenizer"]

TEXT = {"q": "the fox", "source": "en", "target": "de"}
JSON = {"content-type": "application/json"}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
TRANSLATED = {"translatedText": "der Fuchs", "alternatives": ["Fuchs", "ein Fuchs"]}


@pytest.fixture
def fleet(tokenizer: Tokenizer) -> Iterator[dict[str, str]]:
    """Servers of one model each, by its name: their URLs."""
    with contextlib.ExitStack() as stack:

        def start(name: str, reply: str, **model: Any) -> str:
            engine = ScriptedEngine(tokenizer.table, tokenizer.encode(reply, False), name=name, **model)
            return stack.enter_context(running(create_app(engine, tokenizer, template=ChatTemplate(TEMPLATE))))

        yield {
            "chat": start("chat", "Hello!"),
            "vectors": start("vectors", "", generates=False),
            "german": start("german", "der Fuchs", sourced=Sourced(64, 2, pairs={("en", "de"): ""})),
            "french": start("french", "le renard", sourced=Sourced(64, 2, pairs={("en", "fr"): ""})),
        }


def one_key(permits: Permits | None = None, **bounds: int) -> dict[str, Any]:
    """The options of a gateway with one key, "alice", which may have bounds."""
    tenant = Tenant(name="alice", permits=permits or Permits(), levels=(Level("key/alice", Bounds(**bounds)),))
    keys = Keyring([Key(tenant, hashlib.sha256(b"alice").digest())])
    return {"keys": keys, "allowances": OwnAllowances(lambda: 1_000_000.0)}


def translate(gateway: Gateway, key: str = "alice", **fields: Any) -> httpx.Response:
    return gateway.http.post("/translate", json={**TEXT, **fields}, headers=bearer(key))


def before(gateway: Start, fleet: dict[str, str], *names: str, **options: Any) -> Gateway:
    """A gateway before some of the servers, once it knows what these do."""
    started = gateway(unheard=tuple(fleet[name] for name in names), **options)
    until(lambda: all(each.told is not None and each.told.made_for for each in started.replicas.all))
    return started


def telling(model: str) -> Callable[[Received], list[Step]]:
    """What a replica tells that translates with a model."""
    state = {"at": 0.0, "instance": "one", "models": [model], "made_for": {"translate": {"model": model}}}
    return lambda _request: stream(json.dumps(state).encode() + b"\n", lambda: False, kind="application/x-ndjson")


def translating(_request: Received) -> list[Step]:
    return answer(json.dumps(TRANSLATED).encode())


def test_without_a_model_it_is_the_one_that_translates(fleet: dict[str, str], gateway: Start) -> None:
    started = before(gateway, fleet, "chat", "vectors", "german")
    for _ in range(3):
        answered = translate(started)
        assert answered.json() == {"translatedText": "der Fuchs"}
        assert answered.headers["x-penstock-replica"] == fleet["german"]
        assert started.http.post("/v1/chat/completions", json=CHAT).json()["model"] == "chat"
        assert started.http.post("/v1/embeddings", json={"input": "a"}).json()["model"] == "vectors"
        assert len(started.http.post("/embed", json={"inputs": ["a", "b"]}).json()) == 2
        assert started.http.post("/v1/rerank", json={"query": "a", "documents": ["b"]}).json()["model"] == "vectors"
    assert translate(started, q=["a", "b"]).json() == {"translatedText": ["der Fuchs", "der Fuchs"]}
    told = started.http.get("/languages")
    assert told.json() == [{"code": "en", "name": "English", "targets": ["de"]}]
    assert told.headers["x-penstock-replica"] == fleet["german"]
    # A client has its answer a moment before it is counted.
    counted = 'penstock_gateway_requests_total{outcome="answered"} 16.0'
    until(lambda: counted in started.http.get("/metrics").text)


def test_of_several_that_translate_a_request_can_name_one(fleet: dict[str, str], gateway: Start) -> None:
    started = before(gateway, fleet, "german", "french")
    for _ in range(3):
        assert translate(started).json() == {"translatedText": "der Fuchs"}
        assert translate(started, model="french", target="fr").json() == {"translatedText": "le renard"}
    for query, target in (("", "de"), ("?model=german", "de"), ("?model=french", "fr")):
        [language] = started.http.get(f"/languages{query}").json()
        assert language["targets"] == [target]
    # What its model cannot do, the replica says.
    refused = translate(started, target="fr")
    assert refused.status_code == 400 and "'fr' is not one of this model's languages, de" in refused.json()["error"]


def test_errors_have_the_form_of_libretranslate(fleet: dict[str, str], gateway: Start) -> None:
    started = before(gateway, fleet, "german", **one_key(requests_per_minute=1))
    assert translate(started).status_code == 200
    head = bearer("alice")
    for refused, status, said in (
        (translate(started), 429, "This API key has 1 requests in a minute"),
        (translate(started, key="bob"), 401, "key"),
        (started.http.get("/languages"), 401, "key"),
        (started.http.get("/languages?model=none", headers=head), 404, "No replica has the model 'none'"),
        (started.http.get("/translate", headers=head), 405, "GET is not a method of '/translate'"),
        (started.http.post("/translate", content=b"{", headers={**head, **JSON}), 400, "The body cannot be read"),
    ):
        assert refused.status_code == status, refused.text
        [(name, sentence)] = refused.json().items()
        assert name == "error" and said in sentence
    [replica] = started.replicas.all
    until(lambda: not replica.under_way)


def test_another_replica_translates_where_one_breaks(gateway: Start) -> None:
    started = gateway(lambda _request: [CLOSE], translating, told=[telling("pair"), telling("pair")])
    until(lambda: all(each.told is not None for each in started.replicas.all))
    answers = [translate(started) for _ in range(2)]
    assert [each.json() for each in answers] == [TRANSLATED] * 2
    assert {each.headers["x-penstock-replica"] for each in answers} == {started.servers[1].base}
    assert started.dispatch.figures.retries["sent"] == started.asked[0] >= 1
    assert started.servers[1].asked[0].body == {**TEXT, "model": "pair"}
    started.wait_until_empty()


def test_what_is_used_is_what_the_replica_tells(fleet: dict[str, str], gateway: Start, tokenizer: Tokenizer) -> None:
    started = before(gateway, fleet, "chat", "german", **one_key(tokens_per_minute=100_000))
    assert translate(started).status_code == 200
    allowances = started.dispatch.limits.allowances
    assert isinstance(allowances, OwnAllowances)
    used = len(tokenizer.encode("the fox")) + len(tokenizer.encode("der Fuchs", False))
    until(lambda: allowances.used(Meter("key/alice", "tokens", 1, MINUTE)) == used)


def test_the_ledger_has_the_model_that_was_meant(world: World) -> None:
    _, secret = world.key(models=["pair"], endpoints=["/translate"])
    price = Price(model="pair", input=Decimal(1), output=Decimal(2))
    told = answer(json.dumps(TRANSLATED).encode())[0]
    assert isinstance(told, bytes)
    counted = [told.replace(b"\r\n\r\n", b"\r\nX-Penstock-Used: 7,0,5\r\n\r\n")]
    started = world.gateway(lambda _request: counted, told=[telling("pair")], price=(price,))
    until(lambda: started.replicas.all[0].told is not None)
    assert translate(started, secret).json() == TRANSLATED
    until(lambda: statement(world.database, month()).requests == 1)
    [line] = statement(world.database, month()).lines
    assert (line.model, line.cost) == ("pair", Decimal("0.000017"))
    assert "may not ask for the model 'other'" in translate(started, secret, model="other").json()["error"]


def test_what_cannot_be_bounded_is_refused(gateway: Start) -> None:
    bounded = one_key(Permits(max_output_tokens=50))
    started = gateway(translating, told=[telling("pair")], **bounded)
    refused = translate(started)
    assert refused.status_code == 403 and "which /translate cannot be told; send the text" in refused.json()["error"]
    assert started.asked == [0]


def test_guardrails_see_translations(gateway: Start) -> None:
    def denying(request: Received) -> list[Step]:
        fox = "ein Fuchs" in request.body.get("text", "")
        return answer(json.dumps({"action": "deny", "reason": "A fox."} if fox else {"action": "allow"}).encode())

    with scripted(denying) as guard:
        rail = Guardrail(name="rail", url=f"{guard.base}/check", when="both", seconds=PATIENCE)
        started = gateway(translating, told=[telling("pair")], guardrail=(rail,))
        until(lambda: started.replicas.all[0].told is not None)
        refused = translate(started)
        assert refused.status_code == 400
        assert refused.json() == {"error": "The guardrail rail refuses this answer: A fox."}
        before_it, after = (request.body for request in guard.asked)
        assert before_it["body"] == {**TEXT, "model": "pair"} and before_it["model"] == "pair"
        assert after["text"] == "der Fuchs\nFuchs\nein Fuchs" and after["answer"] == TRANSLATED


@pytest.mark.parametrize(
    ("path", "body", "reserved"),
    [
        # A quarter of the texts' bytes, with their quotes; each answer of a translation is bounded by nothing.
        ("/v1/rerank", {"query": "q" * 18, "documents": ["d" * 36]}, 5 + 10),
        ("/rerank", {"query": "q" * 18, "texts": ["d" * 36]}, 5 + 10),
        ("/v1/score", {"text_1": "q" * 18, "text_2": ["d" * 36]}, 5 + 10),
        ("/score", {"queries": "q" * 18, "documents": ["d" * 36]}, 5 + 10),
        ("/v1/classify", {"input": "d" * 38}, 10),
        ("/predict", {"inputs": "d" * 38}, 10),
        ("/embed", {"inputs": ["d" * 36]}, 10),
    ],
)
def test_texts_are_reserved_under_all_their_names(
    gateway: Start, path: str, body: dict[str, Any], reserved: int
) -> None:
    started = gateway(lambda _request: answer(b"[]"), **one_key(tokens_per_minute=1000))
    told = started.http.post(path, json={"model": "scripted", **body}, headers=bearer("alice"))
    assert told.status_code == 200
    assert 0 <= 1000 - int(told.headers["x-ratelimit-remaining-tokens"]) - reserved <= 1


def test_each_translation_is_an_answer_of_its_own(world: World) -> None:
    """Of which each may fill the model's context: a budget has to have room for all."""
    _, secret = world.key(budget_per_day="0.030000")
    price = Price(model="pair", input=Decimal(0), output=Decimal(1))
    state = {"at": 0.0, "instance": "one", "models": ["pair"], "max_model_len": 10_000}
    state["made_for"] = {"translate": {"model": "pair"}}

    def telling_length(_request: Received) -> list[Step]:
        return stream(json.dumps(state).encode() + b"\n", lambda: False, kind="application/x-ndjson")

    started = world.gateway(translating, told=[telling_length], price=(price,))
    until(lambda: started.replicas.all[0].told is not None)
    assert translate(started, secret, q=["the fox", "a cat"], alternatives=1).status_code == 402
    assert translate(started, secret, q=["the fox", "a cat"]).status_code == 200
