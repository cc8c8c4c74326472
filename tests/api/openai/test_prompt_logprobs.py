"""Log probabilities of prompts in responses: as an echo's, and in vLLM's form."""

from typing import Any

import msgspec
import pytest

from penstock.api.openai.answers import ChatCompletion, Completion
from penstock.api.openai.logprobs import CompletionLogprobWriter
from penstock.text.tokenizer import Tokenizer, load_tokenizer
from support.sse import events
from support.tokenizers_made import add_bos, make_raw, save

COLUMNS = ("tokens", "token_logprobs", "top_logprobs")


def test_an_echo_begins_with_the_tokens_of_the_prompt(served: Any) -> None:
    choice = served.complete(echo=True, logprobs=2, max_tokens=2).json()["choices"][0]
    prompt = served.engine.calls[0].prompt
    logprobs = choice["logprobs"]
    count = len(prompt)
    assert choice["text"] == "the foxHe"
    assert {len(values) for values in logprobs.values()} == {count + 2}
    assert logprobs["tokens"][:count] == [served.tokenizer.decode([token], skip_special=False) for token in prompt]
    assert logprobs["token_logprobs"][:3] == [None, -0.25, -0.5]
    assert logprobs["token_logprobs"][count:] == [-0.5, -0.5]
    assert logprobs["top_logprobs"][0] is None
    # A token of the prompt is the third most likely in its place, and told beside the two that were asked for.
    assert [len(tops) for tops in logprobs["top_logprobs"][1:]] == [3] * (count - 1) + [2] * 2
    for token, logprob, tops in list(zip(*(logprobs[name] for name in COLUMNS), strict=True))[1:]:
        assert tops[token] == logprob


def test_offsets_of_an_echo_point_into_the_text(served: Any) -> None:
    for fields in (
        {"prompt": "the wörld 👩‍🚀"},
        {"prompt": "<s>the fox"},
        {"prompt": "the <s> fox"},
        {"prompt": [1, *served.tokenizer.encode("the fox", False), 1, 1]},
        {"prompt": [1, *served.tokenizer.encode("the fox", False)], "skip_special_tokens": False},
    ):
        choice = served.complete(echo=True, logprobs=0, max_tokens=3, **fields).json()["choices"][0]
        logprobs = choice["logprobs"]
        prompt = served.engine.calls[-1].prompt
        special = served.tokenizer.table.special
        for index, (token, offset) in enumerate(zip(logprobs["tokens"], logprobs["text_offset"], strict=True)):
            shown = choice["text"][offset:].startswith(token)
            assert shown or token.startswith("bytes:") or special[prompt[index]], (fields, index)
        assert logprobs["text_offset"] == sorted(logprobs["text_offset"])
        assert logprobs["text_offset"][len(prompt)] == len(choice["text"]) - 3


def test_special_tokens_that_stand_in_the_text_take_room(served: Any) -> None:
    choice = served.complete(prompt="<s>the fox", echo=True, logprobs=0, max_tokens=0).json()["choices"][0]
    assert choice["logprobs"]["text_offset"][:2] == [0, 3]
    choice = served.complete(prompt="the fox", echo=True, logprobs=0, max_tokens=0).json()["choices"][0]
    assert choice["logprobs"]["tokens"][0] == "<s>"
    assert choice["logprobs"]["text_offset"][:2] == [0, 0]


@pytest.fixture
def spaced(tmp_path: Any) -> Tokenizer:
    """One whose first token of a text loses its leading space."""
    return load_tokenizer(save(add_bos(make_raw("metaspace")), tmp_path))


def test_the_first_token_of_a_prompt_loses_its_space(spaced: Tokenizer) -> None:
    text = "the fox"
    tokens = spaced.encode(text)
    writer = CompletionLogprobWriter(spaced.table, True, len(text))
    writer.echo(text, tokens, [None] * len(tokens), 0)
    written = writer.write([])
    joined = written["text_offset"]
    assert joined[:2] == [0, 0]
    assert max(joined) < len(text)
    assert text[joined[-1] :].strip() == written["tokens"][-1].strip()


def test_nothing_may_be_generated(served: Any) -> None:
    whole = served.complete(echo=True, logprobs=1, max_tokens=0).json()
    choice = whole["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("the fox", "length")
    assert len(choice["logprobs"]["tokens"]) == len(served.engine.calls[0].prompt)
    assert whole["usage"]["completion_tokens"] == 0


def test_a_streamed_echo_says_the_same(served: Any) -> None:
    for max_tokens in (0, 3):
        fields = {"prompt": ["the", "quick fox"], "n": 2, "echo": True, "logprobs": 1, "max_tokens": max_tokens}
        whole = served.complete(**fields).json()
        parts = [event["choices"][0] for event in events(served.complete(stream=True, **fields).text)]
        for choice in whole["choices"]:
            own = [part for part in parts if part["index"] == choice["index"]]
            assert "".join(part["text"] for part in own) == choice["text"]
            for name, values in choice["logprobs"].items():
                assert sum((part["logprobs"][name] for part in own if part["logprobs"]), []) == values


def test_scores_by_token_id(served: Any) -> None:
    whole = served.complete(prompt="the fox", prompt_logprobs=2, max_tokens=1).json()
    prompt = served.engine.calls[0].prompt
    first, *scores = whole["choices"][0]["prompt_logprobs"]
    assert first is None and len(scores) == len(prompt) - 1
    for place, (token, score) in enumerate(zip(prompt[1:], scores, strict=True), 1):
        text = served.tokenizer.decode([token])
        assert score.pop(str(token)) == {"logprob": -0.25 * place, "rank": 3, "decoded_token": text}
        assert [(entry["logprob"], entry["rank"]) for entry in score.values()] == [(-0.1, 1), (-0.2, 2)]
        assert list(score) == ["7", "8"]
    assert whole["choices"][0]["logprobs"] is None


def test_scores_of_a_conversation_stand_beside_its_choices(served: Any) -> None:
    whole = served.chat(prompt_logprobs=0, max_tokens=2, n=2).json()
    assert len(whole["prompt_logprobs"]) == len(served.engine.calls[0].prompt)
    assert all("prompt_logprobs" not in choice for choice in whole["choices"])
    assert "prompt_logprobs" not in served.chat().json()


def test_an_echo_has_as_many_likely_tokens_as_were_asked_for_it(served: Any) -> None:
    choice = served.complete(echo=True, logprobs=1, prompt_logprobs=3, max_tokens=0).json()["choices"][0]
    # The token itself is always among them.
    assert [len(tops) for tops in choice["logprobs"]["top_logprobs"][1:]] == [2] * (len(choice["prompt_logprobs"]) - 1)
    assert [len(entry) for entry in choice["prompt_logprobs"][1:]] == [3] * (len(choice["prompt_logprobs"]) - 1)


def test_a_large_answer_is_whole(served: Any) -> None:
    """Put together beside the event loop."""
    prompts = [[5, 6, 9] * 80] * 20
    whole = served.complete(prompt=prompts, prompt_logprobs=2, max_tokens=0).json()
    assert [len(choice["prompt_logprobs"]) for choice in whole["choices"]] == [240] * 20


def test_answers_are_what_the_description_says(served: Any) -> None:
    fields = {"prompt_logprobs": 2, "max_tokens": 2}
    completion = msgspec.json.decode(served.complete(echo=True, logprobs=1, **fields).content, type=Completion)
    assert completion.choices[0].prompt_logprobs
    assert msgspec.json.decode(served.chat(**fields).content, type=ChatCompletion).prompt_logprobs
