"""Scores and classes over HTTP, the engine being scripted: forms of answers, bad input, models that do other things."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.access.errors import TooManyRequests
from penstock.api.scoring.errors import TEI
from penstock.core.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineUnavailable,
    InvalidParameter,
    PenstockError,
    QueueFull,
    RequestError,
)
from penstock.core.vectors import Classes, VectorModules
from penstock.http.errors import ServerStopping
from penstock.server.app import create_app
from penstock.text.tokenizer import Tokenizer
from support.documented import described_client
from support.http_server import running
from support.scripted_engine import ScriptedEngine

LABELS = ("joy", "anger", "fear", "none")
CLASSES = VectorModules("cls", (), classes=Classes(LABELS, "softmax"))


@pytest.fixture(scope="module")
def classifier(tokenizer: Tokenizer) -> Iterator[Any]:
    """What asks a server whose model knows four classes."""
    engine = ScriptedEngine(tokenizer.table, [], vectors=CLASSES, generates=False)
    with running(create_app(engine, tokenizer)) as url, described_client(url) as http:
        yield http


def logits(length: int, second: float = 4.0) -> list[float]:
    norm = math.hypot(length, second, 0, 12)
    return [length / norm, second / norm, 0.0, 12 / norm]


def softmax(values: list[float]) -> list[float]:
    whole = sum(map(math.exp, values))
    return [math.exp(value) / whole for value in values]


def refused(answer: Any) -> tuple[str, str]:
    """The field that is the cause, and the message, in the form of all endpoints or in TEI's."""
    told = answer.json()
    if "error_type" in told:
        assert answer.status_code in (413, 422) and told["error_type"] == "Validation", answer.text
        return told["error"].partition(":")[0], told["error"]
    assert answer.status_code == 400, answer.text
    return told["error"]["param"], told["error"]["message"]


def test_classes_have_labels_and_scores(classifier: Any, tokenizer: Tokenizer) -> None:
    texts = ["the fox", "the quick brown fox"]
    body = classifier.post("/v1/classify", json={"model": "scripted", "input": texts}).json()
    lengths = [len(tokenizer.encode(text)) for text in texts]
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] == sum(lengths)
    for index, (each, length) in enumerate(zip(body["data"], lengths, strict=True)):
        assert (each["index"], each["label"], each["num_classes"]) == (index, "none", 4)
        assert each["probs"] == pytest.approx(softmax(logits(length)), abs=1e-7)
    raw = classifier.post("/classify", json={"input": "the fox", "use_activation": False}).json()
    assert raw["data"][0]["probs"] == pytest.approx(logits(lengths[0]), abs=1e-7)


def test_the_form_of_tei(classifier: Any, tokenizer: Tokenizer) -> None:
    length = len(tokenizer.encode("the fox"))
    one = classifier.post("/predict", json={"inputs": "the fox"}).json()
    assert [each["label"] for each in one] == ["none", "joy", "anger", "fear"] or length < 4
    assert sum(each["score"] for each in one) == pytest.approx(1.0)
    several = classifier.post("/predict", json={"inputs": ["the fox", ["the fox", "a"]], "raw_scores": True}).json()
    assert len(several) == 2 and {each["label"] for each in several[1]} == set(LABELS)
    (pair,) = tokenizer.encode_pairs("the fox", ["a"])
    assert max(each["score"] for each in several[1]) == pytest.approx(max(logits(len(pair.ids))), abs=1e-7)


def test_vectors_are_compared_where_a_model_makes_them(served: Any) -> None:
    query, texts = "the fox", ["a", "the quick brown fox jumps", "the fox"]
    vectors = [logits(len(served.tokenizer.encode(text))) for text in (query, *texts)]
    right = [sum(one * other for one, other in zip(vectors[0], vector, strict=True)) for vector in vectors[1:]]
    body = served.http.post("/v1/score", json={"text_1": query, "text_2": texts}).json()
    assert [each["score"] for each in body["data"]] == pytest.approx(right, abs=1e-6)
    assert body["data"][2]["score"] == pytest.approx(1.0, abs=1e-6)
    ranks = served.http.post("/v1/rerank", json={"query": query, "documents": [{"text": text} for text in texts]})
    order = sorted(range(3), key=lambda index: -right[index])
    assert [each["index"] for each in ranks.json()["results"]] == order
    # Each with its counterpart.
    body = served.http.post("/score", json={"queries": texts, "documents": texts}).json()
    assert [each["score"] for each in body["data"]] == pytest.approx([1.0] * 3, abs=1e-6)


def test_vectors_in_the_form_of_tei(served: Any) -> None:
    ids = served.tokenizer.encode("the fox")
    (vector,) = served.http.post("/embed", json={"inputs": "the fox"}).json()
    assert vector == pytest.approx(logits(len(ids)), abs=1e-7)
    cut = served.http.post("/embed", json={"inputs": ["a b " * 300], "truncate": True, "dimensions": 2})
    assert len(served.engine.calls[-1].prompt) == 256
    assert math.hypot(*cut.json()[0]) == pytest.approx(1.0)
    long = served.http.post("/embed", json={"inputs": "a b " * 300})
    assert long.status_code == 413 and "tokens" in refused(long)[1]
    assert refused(served.http.post("/embed", json={"inputs": "a", "normalize": False}))[0] == "normalize"
    assert refused(served.http.post("/embed", json={"inputs": "a", "prompt_name": "q"}))[0] == "prompt_name"


def test_fields_reach_the_engine(served: Any) -> None:
    fields = {"priority": -3, "cache_salt": "tenant", "user": "me"}
    assert served.http.post("/v1/rerank", json={"query": "a", "documents": ["b"], **fields}).status_code == 200
    assert {(call.standing.priority, call.standing.cache_salt) for call in served.engine.calls} == {(-3, "tenant")}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["a", ""]}, "documents[1]"),
        ("/v1/rerank", {"query": "a", "documents": [5]}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["a"] * 10_001}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"query": ["a"], "documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "a"}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "rank_fields": ["title"]}, "rank_fields"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "no_such_field": 1}, "no_such_field"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "priority": 2**40}, "priority"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "max_tokens_per_doc": 5}, "max_tokens_per_doc"),
        ("/v1/rerank", {"query": "a", "documents": ["a b " * 300]}, "documents[0]"),
        ("/rerank", {"query": "a", "texts": []}, "texts"),
        ("/rerank", {"query": "a", "texts": ["a"], "top_n": 0}, "top_n"),
        ("/rerank", {"query": "a", "texts": ["a"], "max_tokens_per_doc": 5}, "max_tokens_per_doc"),
        ("/v1/score", {"text_1": "a"}, "text_2"),
        ("/v1/score", {"text_1": "a", "queries": "a", "text_2": "b"}, "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": "a"}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "truncation_side": "left"}, "truncation_side"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 257}, "truncate_prompt_tokens"),
    ],
)
def test_refusals_name_the_field(served: Any, path: str, fields: dict[str, Any], param: str) -> None:
    found, message = refused(served.http.post(path, json=fields))
    assert found.partition("[")[0] == param.partition("[")[0] and param in message
    assert served.engine.calls == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a"] * 10_001}, "input"),
        ({"input": [["a", "b"]]}, "input"),
        ({"input": "a b " * 300}, "input"),
        ({"input": "a", "truncate_prompt_tokens": 1}, "truncate_prompt_tokens"),
    ],
)
def test_refusals_of_what_has_no_classes(classifier: Any, fields: dict[str, Any], param: str) -> None:
    found, message = refused(classifier.post("/v1/classify", json=fields))
    assert found.partition("[")[0] == param.partition("[")[0] and param in message


def test_a_model_says_which_endpoint_would_work(served: Any, classifier: Any) -> None:
    for path, fields in (("/v1/classify", {"input": "a"}), ("/predict", {"inputs": "a"})):
        assert "it generates; ask /v1/chat/completions" in refused(served.http.post(path, json=fields))[1]
    for path, fields in (
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/rerank", {"query": "a", "texts": ["b"]}),
        ("/v1/score", {"text_1": "a", "text_2": "b"}),
        ("/v1/embeddings", {"input": "a"}),
        ("/embed", {"inputs": "a"}),
        ("/v1/completions", {"prompt": "a"}),
    ):
        assert "it sorts texts into 4 classes; ask /v1/classify" in refused(classifier.post(path, json=fields))[1]


def test_tokens_have_classes(tokenizer: Tokenizer) -> None:
    modules = VectorModules("tokens", (), classes=Classes(LABELS, "softmax", each_token=True))
    engine = ScriptedEngine(tokenizer.table, [], vectors=modules, generates=False)
    texts = ["the fox", "naïve fox 🚀"]
    with running(create_app(engine, tokenizer)) as url, described_client(url) as http:
        body = http.post("/v1/classify", json={"input": texts}).json()
        for text, each in zip(texts, body["data"], strict=True):
            ids, places = tokenizer.encode_placed(text)
            assert ids == tokenizer.encode(text) and places[0] is None
            expected = [
                (place, max(softmax(logits(token))))
                for token, place in zip(ids, places, strict=True)
                if place is not None
            ]
            assert [(one["start"], one["end"]) for one in each["tokens"]] == [place for place, _ in expected]
            assert [one["score"] for one in each["tokens"]] == pytest.approx([score for _, score in expected], abs=1e-6)
        cut = http.post("/v1/classify", json={"input": "a b " * 300, "truncate_prompt_tokens": 5}).json()
        assert len(cut["data"][0]["tokens"]) == 4 and cut["usage"]["prompt_tokens"] == 5
        assert refused(http.post("/v1/classify", json={"input": "a b " * 300}))[0] == "input"
        assert "it sorts tokens of texts" in refused(http.post("/predict", json={"inputs": "a"}))[1]
        assert "ask /v1/classify" in refused(http.post("/v1/score", json={"text_1": "a", "text_2": "b"}))[1]


def test_an_unknown_model_is_not_found(served: Any) -> None:
    fields = {"model": "gpt", "query": "a", "documents": ["b"]}
    assert served.http.post("/v1/rerank", json=fields).status_code == 404


def test_errors_in_the_form_of_tei(served: Any) -> None:
    ranks = {"query": "a", "texts": ["b"]}
    asked = (("/embed", {"inputs": "a"}), ("/rerank", ranks))

    def told(path: str, body: dict[str, Any]) -> tuple[int, str, str]:
        answer = served.http.post(path, json=body)
        assert list(answer.json()) == ["error", "error_type"], answer.text
        return answer.status_code, answer.json()["error_type"], answer.json()["error"]

    for path, body in asked:
        assert told(path, {**body, "truncate": 5})[:2] == (422, "Validation")
        assert told(path, {**body, "model": "gpt"})[:2] == (404, "Validation")
        served.engine.error = "The model computed no vector."
        assert told(path, body) == (500, "Backend", "The model computed no vector.")
        served.engine.error = None
    assert told("/predict", {"inputs": "a"})[:2] == (422, "Validation")
    for path in ("/embed", "/predict"):
        answer = served.http.post(path, content=b"{", headers={"content-type": "application/json"})
        assert answer.status_code == 400 and answer.json()["error_type"] == "Validation"
        assert served.http.get(path).json()["error_type"] == "Validation"
        served.engine.unavailable = "The engine has failed."
        assert told(path, {"inputs": "a"}) == (503, "Unhealthy", "The engine has failed.")
        served.engine.unavailable = None


def test_errors_of_ranks_have_the_form_of_their_request(served: Any) -> None:
    """Where it is not known yet, that of all endpoints."""
    for body in ({"query": "", "documents": ["a"]}, {"query": "a", "documents": ["a"], "texts": ["a"]}, {"query": "a"}):
        assert refused(served.http.post("/rerank", json=body))[0] in ("query", "texts", "documents")
        assert "error_type" not in served.http.post("/rerank", json=body).json()
    answer = served.http.post("/rerank", content=b'{"texts": [', headers={"content-type": "application/json"})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_request"
    served.engine.unavailable = "The engine has failed."
    answer = served.http.post("/rerank", json={"query": "a", "texts": ["b"]})
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "engine_unavailable"


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (QueueFull("It is full."), 503, "Overloaded"),
        (TooManyRequests("It was one too many."), 429, "Overloaded"),
        (EngineUnavailable("It loads."), 503, "Unhealthy"),
        (ServerStopping("It is stopping."), 503, "Unhealthy"),
        (DeadlineExceeded("It took too long."), 504, "Backend"),
        (PenstockError("It failed."), 500, "Backend"),
        (ContextLengthExceeded("It is too long."), 413, "Validation"),
        (InvalidParameter("inputs", "is empty."), 422, "Validation"),
        (RequestError("The body cannot be read."), 400, "Validation"),
    ],
)
def test_each_error_has_a_type_of_tei(error: PenstockError, status: int, kind: str) -> None:
    assert TEI.status(error) == status
    assert TEI.fields(error) == {"error": error.message, "error_type": kind}


def test_a_failure_fails_the_request(served: Any) -> None:
    served.engine.error = "The model computed no vector."
    answer = served.http.post("/v1/rerank", json={"query": "a", "documents": ["b"]})
    assert answer.status_code == 500 and answer.json()["error"]["message"] == "The model computed no vector."


def test_requests_are_counted(served: Any) -> None:
    served.http.post("/v1/rerank", json={"query": "a", "documents": ["b"]})
    text = served.http.get("/metrics").text
    assert 'penstock_requests_total{endpoint="rerank",outcome="completed"}' in text
