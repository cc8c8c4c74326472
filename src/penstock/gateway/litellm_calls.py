"""Requests that LiteLLM's library sends in the place of a connection: what comes back looks like OpenAI's API."""

import asyncio
import importlib
import inspect
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from penstock.core.errors import ConfigurationError
from penstock.gateway.exchange import Exchange, Head, Headers
from penstock.providers.options import ProviderOptions

_STREAM: Headers = [(b"content-type", b"text/event-stream")]
_JSON = (b"content-type", b"application/json")
logger = logging.getLogger("penstock.gateway")

# The library's own names of its errors, before what a provider says.
_NAMES = re.compile(r"^(litellm\.)?\w+(Error|Exception)(: | - )")
# What follows what is wrong: where in the library, and advice on its settings.
_ASIDE = re.compile(r"\nTraceback |, for model=\S+\. To drop these, ")
_SECONDS = re.compile(r"\d+(\.\d+)?")
_WITHOUT_STATUS = frozenset(("APIConnectionError", "Timeout"))
# Of what an error says.
_MOST_SAID = 2000


class LiteLLM:
    """The library, as a gateway has it: it asks each provider once, and sends nothing to others.

    Raises ConfigurationError where it is not installed. The import takes seconds, so it is made as the gateway starts.
    """

    def __init__(self) -> None:
        # It would fetch a list of prices, and read a file of variables in the folder that it is started in.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
        try:
            library: Any = importlib.import_module("litellm")
            httpx: Any = importlib.import_module("httpx")
        except ImportError as error:
            raise ConfigurationError(
                f"A provider with api = \"litellm\" needs the extra litellm: pip install 'penstock[litellm]' ({error})."
            ) from None
        library.telemetry = library.drop_params = library.modify_params = library.set_verbose = False
        library.suppress_debug_info = library.disable_hf_tokenizer_download = True
        # With the other one, an answer whose connection breaks looks as if it were complete.
        library.disable_aiohttp_transport = True
        # Answers may well say one thing a hundred times.
        library.REPEATED_STREAMING_CHUNK_LIMIT = 1 << 62
        # What it logs otherwise has requests in it.
        for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self._library, self._timeout = library, httpx.Timeout
        self._calls: set[asyncio.Task[None]] = set()

    def check(self, model: str) -> None:
        """Raise ConfigurationError for the name of a model whose provider it does not know.

        It also imports what it needs for that provider, for which the first request would wait.
        """
        try:
            _, provider, _, _ = self._library.get_llm_provider(model=model)
        except self._library.BadRequestError:
            raise ConfigurationError(
                f'LiteLLM does not know which provider has the model {model!r}; write at = "PROVIDER/MODEL" as '
                "LiteLLM calls it, such as gemini/gemini-3-pro-preview."
            ) from None
        self._library.get_supported_openai_params(model=model, custom_llm_provider=provider)

    def timeout(self, connect: float, read: float) -> Any:
        """Seconds, as the library takes them."""
        return self._timeout(read, connect=connect)

    def call(self, name: str, key: str | None, fields: Mapping[str, Any]) -> "Call":
        """Ask a provider of that name, which has that key, for something."""
        call = Call(self._library.acompletion, name, key, fields)
        self._calls.add(call.task)
        call.task.add_done_callback(self._calls.discard)
        return call

    async def close(self) -> None:
        """End all calls, and close the library's connections."""
        for task in (calls := tuple(self._calls)):
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        # What the library has for this leaves some open, and takes closed ones again.
        cache = self._library.in_memory_llm_clients_cache
        for client in (*cache.cache_dict.values(), vars(self._library).pop("module_level_aclient", None)):
            if inspect.iscoroutinefunction(close := getattr(client, "close", None)):
                await close()
        cache.flush_cache()


class LiteLLMCalls:
    """Sends requests to one provider through the library, as a pool does over connections.

    Raises ConfigurationError where the library does not know one of its models' provider.

    Args:
        connect, read: seconds that it may take to reach the provider, and that nothing may come for.
    """

    def __init__(self, library: LiteLLM, options: ProviderOptions, key: str | None, connect: float, read: float):
        self._library, self._name, self._key = library, f"provider/{options.name}", key
        for each in options.model:
            library.check(each.at or each.model)
        self._fields: dict[str, Any] = {
            "num_retries": 0,
            "max_retries": 0,
            "timeout": library.timeout(connect, read),
            # Where these are not given, the library finds them in the environment, or knows them.
            **({} if key is None else {"api_key": key}),
            **({} if options.url is None else {"api_base": options.url}),
        }
        self._open: set[Call] = set()

    async def send(self, *parts: bytes, fresh: bool = False) -> "tuple[Call, Exchange]":
        """Ask what the body of a chat completion asks for."""
        call = self._library.call(self._name, self._key, json.loads(b"".join(parts)) | self._fields)
        self._open.add(call)
        call.task.add_done_callback(lambda _: self._open.discard(call))
        return call, call.exchange

    def close(self) -> None:
        """End what is under way."""
        for call in tuple(self._open):
            call.close()


class Call:
    """One request.

    Attributes:
        requests: that were sent with it.
        exchange: its answer: the library's chunks as events of OpenAI's API, or its error as one of HTTP.
    """

    requests = 1

    def __init__(self, ask: Any, name: str, key: str | None, fields: Mapping[str, Any]) -> None:
        self._may_go_on = asyncio.Event()
        self._may_go_on.set()
        self.exchange = Exchange(self._may_go_on.clear, self._may_go_on.set)
        self._name, self._key = name, key
        self.task = asyncio.create_task(self._run(ask, fields))

    def close(self) -> None:
        """End the request, which its provider learns by the end of its connection."""
        self.task.cancel()

    async def _run(self, ask: Any, fields: Mapping[str, Any]) -> None:
        try:
            answer = await ask(**fields)
            try:
                await self._read(answer)
            finally:
                await answer.aclose()
        except asyncio.CancelledError:
            self.exchange.fail("it was left")
            raise
        except Exception as error:
            self._fail(error)

    async def _read(self, answer: AsyncIterator[Any]) -> None:
        async for chunk in answer:
            # Whether a provider takes a request shows in the first one.
            if not self.exchange.begun:
                self.exchange.begin(Head(200, _STREAM))
            told = chunk.model_dump(mode="json", exclude_none=True)
            if not _is_complete(answer):
                # The library makes an end up where there was none.
                for choice in told.get("choices", ()):
                    choice.pop("finish_reason", None)
            self.exchange.add(b"data: %b\n\n" % json.dumps(told).encode())
            await self._may_go_on.wait()
        if not self.exchange.begun or not _is_complete(answer):
            self.exchange.fail("it ended its answer before that was complete")
            return
        self.exchange.add(b"data: [DONE]\n\n")
        self.exchange.end()

    def _fail(self, error: Exception) -> None:
        """Tell the error as HTTP does: by a status, or as an event where an answer has begun."""
        # Of a stream, what is wrong is inside of what is for the library's own router.
        error = getattr(error, "original_exception", None) or error
        status, said = _status(error), self._said(error)
        if self.exchange.begun:
            self.exchange.add(b"data: %b\n\n" % json.dumps({"error": {"message": said}}).encode())
            self.exchange.end()
        elif status is None:
            logger.warning("%s cannot be asked by LiteLLM: %s", self._name, said)
            self.exchange.fail("LiteLLM could not ask it; the gateway's log says why")
        else:
            self.exchange.begin(Head(status, [_JSON, *_retry_after(error)]))
            self.exchange.add(json.dumps({"error": {"message": said}}).encode())
            self.exchange.end()

    def _said(self, error: Exception) -> str:
        """What an error says, without the key, which some have in the URL that they name."""
        said = _ASIDE.split(str(getattr(error, "message", "") or error), maxsplit=1)[0]
        while said != (shorter := _NAMES.sub("", said)):
            said = shorter
        return (said.replace(self._key, "[key]") if self._key else said)[:_MOST_SAID]


def _is_complete(answer: Any) -> bool:
    """Whether the provider has said how the answer ended: the library makes that up where it has not."""
    told = [getattr(answer, name, "") for name in ("received_finish_reason", "intermittent_finish_reason")]
    return told != [None, None]


def _status(error: BaseException | None) -> int | None:
    """By which a provider has refused; None where it did not answer. The library makes up one of its own for these, and
    for some others: those have the provider's behind them.
    """
    while error is not None:
        status = getattr(error, "status_code", None)
        if isinstance(status, int) and type(error).__name__ not in _WITHOUT_STATUS:
            return status
        error = error.__cause__ or error.__context__
    return None


def _retry_after(error: Exception) -> Headers:
    """What it says of when to come back, wherever the library has kept it."""
    response = getattr(error, "response", None)
    for headers in (getattr(error, "litellm_response_headers", None), getattr(response, "headers", None)):
        value = str((headers or {}).get("retry-after", ""))
        if _SECONDS.fullmatch(value):
            return [(b"retry-after", value.encode())]
    return []
