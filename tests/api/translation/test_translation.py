"""`/translate` and `/languages` over HTTP, the engine being scripted: languages of all kinds of models."""

from typing import Any

import msgspec
import pytest

from penstock.api.translation.schema import Language, Translation
from penstock.core.sourced import Sourced

REPLY = "Hello, wörld 👩\u200d🚀!"


@pytest.fixture(autouse=True)
def _any_vocabulary(served: Any) -> Any:
    """Each test says what model it is."""
    before = served.engine.model
    yield
    served.engine.model = before


def become(served: Any, **sourced: Any) -> None:
    settings = {"longest": 64, "start": 2, **sourced}
    served.engine.model = msgspec.structs.replace(served.engine.model, sourced=Sourced(**settings))


def translate(served: Any, q: Any = "the fox", source: str = "en", target: str = "de", **more: Any) -> Any:
    return served.http.post("/translate", json={"q": q, "source": source, "target": target, **more})


def languages(served: Any) -> list[Language]:
    return msgspec.json.decode(served.http.get("/languages").content, type=list[Language])


@pytest.mark.parametrize(
    ("codes", "source"),
    [(("eng_Latn", "deu_Latn"), "eng_Latn"), (("en_XX", "de_DE"), "en_XX"), (("en", "de"), "en")],
)
def test_a_source_has_the_token_of_its_language_before_it(served: Any, codes: tuple[str, str], source: str) -> None:
    """Where the tokenizer puts none there; by two letters and by the model's own code."""
    become(served, languages=dict(zip(codes, (70, 71), strict=True)))
    assert languages(served) == [Language("en", "English", ["de"]), Language("de", "German", ["en"])]
    for asked in ("en", source):
        served.engine.calls.clear()
        answer = translate(served, source=asked)
        assert msgspec.json.decode(answer.content, type=Translation).translated_text == REPLY
        [call] = served.engine.calls
        assert call.prompt == [70, *served.tokenizer.encode("the fox")] and call.forced_bos == 71
        assert (call.params.temperature, call.params.max_tokens) == (0.0, 254)


def test_a_model_of_one_pair(served: Any) -> None:
    become(served, pairs={("en", "de"): ""})
    assert languages(served) == [Language("en", "English", ["de"])]
    assert translate(served, source="eng").status_code == 200
    [call] = served.engine.calls
    assert call.prompt == served.tokenizer.encode("the fox") and call.forced_bos is None
    assert (
        "'de' is not one of this model's languages, en" in translate(served, source="de", target="en").json()["error"]
    )
    assert "'fr' is not one of this model's languages, de" in translate(served, target="fr").json()["error"]


def test_a_model_whose_tasks_have_words(served: Any) -> None:
    become(served, pairs={("en", "de"): "to German: ", ("en", "fr"): "to French: "})
    assert languages(served) == [Language("en", "English", ["de", "fr"])]
    assert translate(served, q=["the fox", "a"], target="fr").json() == {"translatedText": [REPLY, REPLY]}
    assert served.engine.calls[0].prompt == served.tokenizer.encode("to French: the fox")


def test_a_model_that_does_not_say_its_languages(served: Any) -> None:
    become(served)
    assert languages(served) == []
    answer = translate(served)
    assert answer.headers["x-penstock-ignored"] == "source, target" and answer.status_code == 200


def test_many_languages_are_not_all_named(served: Any) -> None:
    become(served, languages={f"{first}{second}_XX": 9 for first in "qw" for second in "abcdefghijklmnopqrst"})
    assert translate(served).json()["error"].endswith("qs, qt, and 20 more (GET /languages has all).")


def test_a_model_without_an_encoder_translates_in_chats(served: Any) -> None:
    refused = translate(served)
    assert refused.status_code == 400 and "it is no encoder–decoder; ask it to translate at" in refused.json()["error"]
    assert languages(served) == []
    answer = served.http.post("/v1/completions", json={"prompt": "a", "forced_bos_token": 5})
    assert answer.json()["error"]["message"].startswith("forced_bos_token: is for models with an encoder")


def test_more_texts_than_an_answer_has(served: Any) -> None:
    become(served)
    assert "has 1025 texts; send 1 to 1024" in translate(served, q=["a"] * 1025).json()["error"]


def test_completions_begin_with_what_is_asked_for(served: Any) -> None:
    become(served, languages={"en_XX": 70})
    for token in (70, served.tokenizer.token(70)):
        served.engine.calls.clear()
        answer = served.http.post("/v1/completions", json={"prompt": "the fox", "forced_bos_token": token})
        assert answer.status_code == 200, answer.text
        assert served.engine.calls[0].forced_bos == 70
    for token, message in (
        (1000, "outside the vocabulary"),
        (True, "expected int or str"),
        ("", "is no token"),
        (-1, "outside"),
    ):
        answer = served.http.post("/v1/completions", json={"prompt": "the fox", "forced_bos_token": token})
        assert answer.status_code == 400 and message in answer.text, answer.text


def test_messages_and_responses_say_what_would_work(served: Any) -> None:
    become(served)
    for path, body in (
        ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": "a"}]}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        refused = served.http.post(path, json=body)
        assert refused.status_code == 400 and "send the text to /v1/completions, or to /translate" in refused.text
