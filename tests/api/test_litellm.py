"""LiteLLM, through which many programs speak to servers, against this one: all that it can ask, in both dialects."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.text.tokenizer import Tokenizer
from support.closed_clients import closing_clients
from support.speaking_model import CALL, SAID, SpeakingModel, serving_speaking_model
from support.waiting import until

# Its own types and those of pydantic do not quite agree any more.
pytestmark = pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning")

REPLY = "Hello, wörld 👩‍🚀!"
HI: Any = [{"role": "user", "content": "hi"}]
SCHEMA: Any = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
BATCH_LINE = {
    "custom_id": "1",
    "method": "POST",
    "url": "/v1/completions",
    "body": {"prompt": "the fox", "max_tokens": 100},
}

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that is closed in the end; the library would make one and leave it open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    loop.run_until_complete(loop.shutdown_asyncgens())
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture(scope="module")
def litellm(loop: asyncio.AbstractEventLoop) -> Iterator[Any]:
    """The library, which asks nobody but the server. Its import takes seconds, which only those who use it pay for."""
    asked: list[str] = []
    resolve = socket.getaddrinfo

    def only_here(host: Any, *arguments: Any, **named: Any) -> Any:
        if host not in ("127.0.0.1", b"127.0.0.1"):
            asked.append(str(host))
            raise OSError(f"{host} is not this machine")
        return resolve(host, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        patch.setattr(socket, "getaddrinfo", only_here)
        import litellm

        litellm.telemetry = False
        litellm.suppress_debug_info = True
        with closing_clients():
            yield litellm
    assert asked == []


@pytest.fixture(scope="module")
def speaking(tokenizer: Tokenizer) -> Iterator[SpeakingModel]:
    with serving_speaking_model(tokenizer) as model:
        yield model


@pytest.fixture
def ask(litellm: Any, served: Any) -> Ask:
    """Calls one of the library's functions; in OpenAI's dialect, where no model of Anthropic's is asked for."""
    return asking(litellm, served.url)


def asking(litellm: Any, url: str) -> Ask:
    def ask(function: str, **fields: Any) -> Any:
        model = fields.get("model", "")
        base = url if model.startswith("anthropic/") else f"{url}/v1"
        place = {"custom_llm_provider": "openai"} if not model else {}
        return getattr(litellm, function)(api_base=base, api_key="none", max_retries=0, **place, **fields)

    return ask


def test_chat(ask: Ask, served: Any) -> None:
    answer = ask("completion", model="openai/scripted", messages=HI, temperature=0.5, seed=3, stop=["zz"])
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (REPLY, "stop")
    params = served.engine.calls[0].params
    assert (params.temperature, params.seed, params.stop) == (0.5, 3, ("zz",))
    assert answer.usage.prompt_tokens == len(served.engine.calls[0].prompt)
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


def test_chat_streamed(ask: Ask) -> None:
    chunks = list(
        ask(
            "completion",
            model="openai/scripted",
            messages=HI,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == REPLY
    assert chunks[-1].usage.completion_tokens > 10


def test_text_completion(ask: Ask) -> None:
    answer = ask("text_completion", model="text-completion-openai/scripted", prompt="the fox", max_tokens=100)
    assert answer.choices[0].text == REPLY
    chunks = ask(
        "text_completion", model="text-completion-openai/scripted", prompt="the fox", max_tokens=100, stream=True
    )
    assert "".join(chunk.choices[0].text or "" for chunk in chunks) == REPLY


@pytest.mark.parametrize("provider", ["hosted_vllm", "cohere", "jina_ai"])
def test_reranking(litellm: Any, served: Any, provider: str) -> None:
    texts = ["a", "the quick brown fox"]
    answer = litellm.rerank(
        model=f"{provider}/scripted",
        query="the fox",
        documents=texts,
        top_n=1,
        return_documents=True,
        api_base=served.url,
        api_key="none",
    )
    ((best,), scores) = answer.results, served.http.post("/v1/score", json={"text_1": "the fox", "text_2": texts})
    score = max(each["score"] for each in scores.json()["data"])
    assert best["relevance_score"] == pytest.approx(score, abs=1e-7)
    assert best["document"]["text"] == texts[best["index"]]


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_and_calls(litellm: Any, speaking: SpeakingModel, stream: bool) -> None:
    ask = asking(litellm, speaking.url)
    speaking.says(SAID)
    answer = ask("completion", model="openai/scripted", messages=HI, tools=[WEATHER], stream=stream)
    if stream:
        answer = litellm.stream_chunk_builder(list(answer), messages=HI)
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("Which city?", "I look.")
    (call,) = message.tool_calls
    assert call.function.name == "weather" and json.loads(call.function.arguments) == {"city": "Köln"}
    assert answer.choices[0].finish_reason == "tool_calls"
    # The whole message goes back, followed by what the tool says.
    speaking.says(REPLY)
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    turns = [*HI, message, result]
    again = ask("completion", model="openai/scripted", messages=turns, tools=[WEATHER], tool_choice="auto")
    assert again.choices[0].message.content == REPLY
    assert "I look." + CALL in speaking.prompt() and "tool: rain" in speaking.prompt()


def test_structured_output(ask: Ask, served: Any) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    ask("completion", model="openai/scripted", messages=HI, response_format=wanted)
    assert json.loads(served.engine.calls[0].params.grammar.text) == SCHEMA


def test_embeddings(ask: Ask, served: Any) -> None:
    answer = ask("embedding", model="openai/scripted", input=["the fox", "a"])
    assert [len(item["embedding"]) for item in answer.data] == [4, 4]
    assert answer.usage.prompt_tokens == sum(len(call.prompt) for call in served.engine.calls)


@pytest.mark.parametrize("stream", [False, True])
def test_responses(ask: Ask, stream: bool) -> None:
    asked: Any = {"model": "openai/scripted", "instructions": "be", "metadata": {"a": "b"}}
    answer = ask("responses", input="hi", stream=stream, **asked)
    if stream:
        *_, last = answer
        assert last.type == "response.completed"
        answer = last.response
    assert (answer.status, answer.metadata) == ("completed", {"a": "b"})
    assert answer.output[0].content[0].text == REPLY


def test_stored_responses(ask: Ask, litellm: Any) -> None:
    first = ask("responses", model="openai/scripted", input="hi")
    second = ask("responses", model="openai/scripted", input="more", previous_response_id=first.id)
    assert ask("get_responses", response_id=second.id).output[0].content[0].text == REPLY
    (item,) = ask("list_input_items", response_id=second.id)["data"]
    assert item["content"][0]["text"] == "more"
    assert ask("delete_responses", response_id=second.id).deleted
    with pytest.raises(litellm.BadRequestError, match="is stored here"):
        ask("responses", model="openai/scripted", input="x", previous_response_id=second.id)


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_dialect(litellm: Any, speaking: SpeakingModel, stream: bool) -> None:
    speaking.says(SAID)
    asked: Any = {"model": "anthropic/scripted", "max_tokens": 500, "messages": HI, "tools": [WEATHER]}
    answer = asking(litellm, speaking.url)("completion", stream=stream, **asked)
    if stream:
        answer = litellm.stream_chunk_builder(list(answer), messages=HI)
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("Which city?", "I look.")
    (call,) = message.tool_calls
    assert call.function.name == "weather" and json.loads(call.function.arguments) == {"city": "Köln"}
    assert answer.choices[0].finish_reason == "tool_calls"


def test_messages(litellm: Any, served: Any, loop: asyncio.AbstractEventLoop) -> None:
    asked: Any = {"model": "anthropic/scripted", "max_tokens": 100, "messages": HI, "temperature": 0.5}
    place: Any = {"api_base": served.url, "api_key": "none"}
    answer = loop.run_until_complete(litellm.anthropic.messages.acreate(**place, **asked))
    assert answer["content"][0]["text"] == REPLY and answer["stop_reason"] == "end_turn"
    assert served.engine.calls[0].params.temperature == 0.5


def test_files_and_batches(ask: Ask, served: Any) -> None:
    contents = json.dumps(BATCH_LINE).encode()
    file = ask("create_file", file=("in.jsonl", contents), purpose="batch")
    assert ask("file_content", file_id=file.id).content == contents
    created = ask("create_batch", input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    until(lambda: ask("retrieve_batch", batch_id=created.id).status == "completed")
    batch = ask("retrieve_batch", batch_id=created.id)
    assert batch.request_counts.completed == 1
    line = json.loads(ask("file_content", file_id=batch.output_file_id).content)
    assert line["custom_id"] == "1" and line["response"]["body"]["choices"][0]["text"] == REPLY
    assert batch.id in [each.id for each in ask("list_batches").data]
    assert ask("file_delete", file_id=file.id).deleted


def test_errors_have_the_librarys_own_types(ask: Ask, litellm: Any, served: Any) -> None:
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        ask("completion", model="openai/scripted", messages=HI, temperature=-1)
    with pytest.raises(litellm.NotFoundError, match="does not exist"):
        ask("completion", model="openai/another", messages=HI)
    with pytest.raises(litellm.ContextWindowExceededError):
        ask("completion", model="openai/scripted", messages=[{"role": "user", "content": "fox " * 400}])
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        ask("completion", model="anthropic/scripted", max_tokens=5, messages=HI, temperature=-1)
    served.engine.unavailable = "The engine is starting."
    with pytest.raises((litellm.ServiceUnavailableError, litellm.InternalServerError), match="starting"):
        ask("completion", model="openai/scripted", messages=HI)
    with pytest.raises((litellm.ServiceUnavailableError, litellm.InternalServerError), match="starting"):
        ask("completion", model="anthropic/scripted", max_tokens=5, messages=HI)
