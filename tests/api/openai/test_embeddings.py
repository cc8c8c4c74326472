"""`/v1/embeddings` over HTTP, the engine being scripted."""

import base64
import math
import struct
from typing import Any

import msgspec
import openai
import pytest

from penstock.api.openai.answers import Embeddings
from penstock.api.requests import EmbeddingFields


def refused_field(response: Any) -> str:
    assert response.status_code == 400, response.text
    error: dict[str, str] = response.json()["error"]
    assert error["param"] in error["message"]
    return error["param"]


def embed(served: Any, **fields: Any) -> Any:
    return served.http.post("/v1/embeddings", json={"input": "the fox", **fields})


def unit(*values: float) -> list[float]:
    return [value / math.hypot(*values) for value in values]


def test_one_text_has_one_vector(served: Any) -> None:
    body = embed(served).json()
    (call,) = served.engine.calls
    assert call.pooling == "last"
    length = len(call.prompt)
    assert body["object"] == "list" and body["model"] == "scripted"
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] == length
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    (item,) = body["data"]
    assert (item["object"], item["index"]) == ("embedding", 0)
    assert item["embedding"] == pytest.approx(unit(length, 4, 0, 12), abs=1e-7)


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_answers_are_what_the_description_says(served: Any, encoding: str) -> None:
    assert msgspec.json.decode(embed(served, encoding_format=encoding).content, type=Embeddings).usage.total_tokens


def test_inputs_of_every_kind_are_answered_in_order(served: Any) -> None:
    ids = served.tokenizer.encode("the fox")
    for given_input, prompts in (
        (ids, [ids]),
        ([ids, [5]], [ids, [5]]),
        (["the fox", "a"], [ids, served.tokenizer.encode("a")]),
    ):
        served.engine.calls.clear()
        data = embed(served, input=given_input, pooling="mean").json()["data"]
        assert [call.prompt for call in served.engine.calls] == prompts
        assert [item["index"] for item in data] == list(range(len(prompts)))
        for item, prompt in zip(data, prompts, strict=True):
            assert item["embedding"] == pytest.approx(unit(len(prompt), 8, 0, 12), abs=1e-7)


def test_the_openai_client_reads_both_encodings(served: Any) -> None:
    with openai.OpenAI(base_url=served.url + "/v1", api_key="unused", max_retries=0) as client:
        # Without an encoding the client asks for base64 and decodes it.
        decoded = client.embeddings.create(model="scripted", input=["the fox", "a"])
        plain = client.embeddings.create(model="scripted", input=["the fox", "a"], encoding_format="float")
    assert [item.embedding for item in decoded.data] == [item.embedding for item in plain.data]


def test_base64_holds_little_endian_floats(served: Any) -> None:
    item = embed(served, input=[5], encoding_format="base64").json()["data"][0]
    assert struct.unpack("<4f", base64.b64decode(item["embedding"])) == pytest.approx(unit(1, 4, 0, 12), abs=1e-7)


def test_shorter_vectors_have_length_1_again(served: Any) -> None:
    for dimensions in (1, 2, 3, 4):
        item = embed(served, input=[5], dimensions=dimensions).json()["data"][0]
        assert item["embedding"] == pytest.approx(unit(*[1, 4, 0, 12][:dimensions]), abs=1e-6)


def test_integers_and_bits(served: Any) -> None:
    numbers = unit(1, 4, 0, 12)
    for output_dtype, given in (
        ("int8", [round(127 * number / numbers[3]) for number in numbers]),
        ("ubinary", [0b11010000]),
        ("binary", [0b11010000 - 128]),
    ):
        # The client asks for base64, which it would read as float32; so it gets numbers, and is told.
        response = embed(served, input=[5], output_dtype=output_dtype, encoding_format="base64")
        assert response.json()["data"][0]["embedding"] == given
        assert response.headers["x-penstock-ignored"] == "encoding_format"
    response = embed(served, input=[5], output_dtype="int8", dimensions=2)
    assert response.json()["data"][0]["embedding"] == [32, 127] and "x-penstock-ignored" not in response.headers
    with openai.OpenAI(base_url=served.url + "/v1", api_key="unused", max_retries=0) as client:
        made = client.embeddings.create(model="scripted", input=[5], extra_body={"output_dtype": "ubinary"})
    assert made.data[0].embedding == [0b11010000]


def test_each_token_can_have_a_vector(served: Any) -> None:
    response = embed(served, input=[[5, 6], [7]], pooling="tokens", encoding_format="base64", dimensions=2)
    msgspec.json.decode(response.content, type=Embeddings)
    assert response.headers["x-penstock-ignored"] == "encoding_format"
    found = [item["embedding"] for item in response.json()["data"]]
    assert found == [[pytest.approx(unit(5, 4)), pytest.approx(unit(6, 4))], [pytest.approx(unit(7, 4))]]


def test_other_fields_reach_the_engine(served: Any) -> None:
    assert embed(served, priority=-3, cache_salt="tenant", user="me", add_special_tokens=False).status_code == 200
    (call,) = served.engine.calls
    assert (call.standing.priority, call.standing.cache_salt) == (-3, "tenant")
    assert call.prompt == served.tokenizer.encode("the fox", False)
    everything = set(EmbeddingFields.__struct_fields__) - {"input"}
    assert embed(served, **dict.fromkeys(everything)).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [5, 1000]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": None}, "input"),
        ({"input": ["a"] * 2000}, "input"),
        ({"input": [5] * 257}, "input"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 5}, "dimensions"),
        ({"dimensions": 2.5}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"output_dtype": "uint8"}, "output_dtype"),
        ({"pooling": "median"}, "pooling"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 257}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": "5"}, "truncate_prompt_tokens"),
        # No room beside the token that the tokenizer puts before a text.
        ({"truncate_prompt_tokens": 1}, "truncate_prompt_tokens"),
        ({"truncation_side": "left"}, "truncation_side"),
        ({"truncate_prompt_tokens": 5, "truncation_side": "middle"}, "truncation_side"),
        ({"priority": 2**40}, "priority"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"user": "x" * 513}, "user"),
        ({"stream": True}, "stream"),
        ({"no_such_field": 1}, "no_such_field"),
    ],
)
def test_refusals_name_the_field(served: Any, fields: dict[str, Any], param: str) -> None:
    if param == "input":
        fields = {**fields, "add_special_tokens": False}
    assert refused_field(embed(served, **fields)) == param
    assert served.engine.calls == []


def test_a_request_can_have_its_inputs_cut(served: Any) -> None:
    ids = served.tokenizer.encode("the quick brown fox")
    assert len(ids) > 4

    def embedded(given: Any, **fields: Any) -> list[int]:
        usage = embed(served, input=given, **fields).json()["usage"]
        prompt: list[int] = served.engine.calls[-1].prompt
        assert usage["prompt_tokens"] == usage["total_tokens"] == len(prompt)
        return prompt

    text = "the quick brown fox"
    # What the tokenizer puts before a text stays.
    assert embedded(text, truncate_prompt_tokens=4) == ids[:4]
    assert embedded(text, truncate_prompt_tokens=4, truncation_side="right") == ids[:4]
    assert embedded(text, truncate_prompt_tokens=4, truncation_side="left") == [ids[0], *ids[-3:]]
    assert embedded(text, truncate_prompt_tokens=4, truncation_side="left", add_special_tokens=False) == ids[-4:]
    # Of ids, all are the client's.
    assert embedded(ids, truncate_prompt_tokens=4, truncation_side="left") == ids[-4:]
    assert embedded(ids, truncate_prompt_tokens=1) == ids[:1]
    for more in (len(ids), 256, -1):
        assert embedded(text, truncate_prompt_tokens=more) == ids
    # -1 stands for what the model takes.
    assert embedded([5] * 300, truncate_prompt_tokens=-1) == [5] * 256
    assert len(embedded("a b " * 20_000, truncate_prompt_tokens=-1)) == 256


def test_an_unknown_model_is_not_found(served: Any) -> None:
    assert embed(served, model="gpt").status_code == 404


def test_a_text_may_fill_the_context(served: Any) -> None:
    assert embed(served, input=[5] * 256).status_code == 200


def test_a_failure_fails_the_request(served: Any) -> None:
    served.engine.error = "The model computed no vector."
    response = embed(served, input=["a", "b"])
    assert response.status_code == 500 and response.json()["error"]["message"] == "The model computed no vector."


def test_requests_are_counted(served: Any) -> None:
    embed(served)
    embed(served, input="")
    text = served.http.get("/metrics").text
    assert 'penstock_requests_total{endpoint="embeddings",outcome="completed"}' in text
