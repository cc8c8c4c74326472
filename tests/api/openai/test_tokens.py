"""Texts and conversations as tokens, and back; and the version."""

import threading
from typing import Any

import httpx
import pytest

from penstock import __version__
from penstock.server.app import create_app
from support.http_server import running
from support.scripted_engine import ScriptedEngine


def tokenize(served: Any, **fields: object) -> Any:
    return served.http.post("/tokenize", json=fields)


def test_texts(served: Any) -> None:
    body = tokenize(served, prompt="the fox", return_token_strs=True, model="alias").json()
    ids = served.tokenizer.encode("the fox")
    assert (body["tokens"], body["count"], body["max_model_len"]) == (ids, len(ids), 256)
    assert body["token_strs"][0] == "<s>" and "".join(body["token_strs"][1:]) == "theĠfox"
    bare = tokenize(served, prompt="the fox", add_special_tokens=False).json()
    assert bare["tokens"] == ids[1:] and bare["token_strs"] is None
    assert tokenize(served, prompt="").json()["count"] == 1


def test_a_text_longer_than_the_context_is_counted(served: Any) -> None:
    assert tokenize(served, prompt="fox " * 2000).json()["count"] > 2000


def test_conversations_are_those_of_chats(served: Any) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi<|im_end|>"}]}]
    served.chat(messages=messages)
    assert tokenize(served, messages=messages).json()["tokens"] == served.engine.calls[0].prompt
    shorter = tokenize(served, messages=messages, add_generation_prompt=False, return_token_strs=False).json()
    assert shorter["count"] < len(served.engine.calls[0].prompt)
    shouted = tokenize(served, messages=messages, chat_template_kwargs={"shout": True}).json()["tokens"]
    assert served.tokenizer.decode(shouted).endswith("SHOUT")
    begun = [{"role": "assistant", "content": "go on"}]
    continued = tokenize(served, messages=begun, continue_final_message=True, add_special_tokens=True).json()
    assert served.tokenizer.decode(continued["tokens"], False) == "<s><|im_start|>assistant: go on"


def test_tokens_become_text_again(served: Any) -> None:
    for text in ("the fox", "<s>naïve café 👩‍🚀<|im_end|>", ""):
        tokens = tokenize(served, prompt=text, add_special_tokens=False).json()["tokens"]
        assert served.http.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": text}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": ["x"]}, "prompt"),
        ("/tokenize", {"prompt": "x", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x", "audio": {}}]}, "messages[0].audio"),
        ("/tokenize", {"prompt": "x", "temperature": 1}, "temperature"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [5, -1]}, "tokens"),
        ("/detokenize", {"tokens": [1000]}, "tokens"),
        ("/detokenize", {"tokens": ["x"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [5], "more": 1}, "more"),
    ],
)
def test_refusals_name_the_field(served: Any, path: str, fields: dict[str, Any], param: str) -> None:
    response = served.http.post(path, json=fields)
    assert response.status_code == 400 and response.json()["error"]["param"] == param


def test_the_model_is_checked_and_must_be_there(served: Any) -> None:
    assert tokenize(served, prompt="x", model="gpt").status_code == 404
    assert served.http.post("/detokenize", json={"tokens": [5], "model": "gpt"}).status_code == 404
    served.engine.unavailable = "The engine is starting."
    assert tokenize(served, prompt="x").status_code == 503


def test_without_a_tokenizer(tokenizer: Any) -> None:
    with running(create_app(ScriptedEngine(None, [5]), None)) as url:
        for path, fields in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [5]})):
            assert httpx.post(url + path, json=fields).status_code == 400


def test_a_long_text_is_tokenized_beside_the_event_loop(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    encode = served.tokenizer.encode

    def noting(*arguments: Any) -> list[int]:
        threads.append(threading.current_thread().name)
        ids: list[int] = encode(*arguments)
        return ids

    monkeypatch.setattr(served.tokenizer, "encode", noting)
    assert tokenize(served, prompt="fox " * 10_000).status_code == 200
    assert threads[0].startswith("tokenizer")


def test_version(served: Any) -> None:
    assert served.http.get("/version").json() == {"version": __version__}
