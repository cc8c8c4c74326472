"""What is found out about a server before any load: whether it is there, its model, and that it can be measured."""

from typing import Any

import msgspec

from penstock.bench.load.answer import Answer
from penstock.bench.load.bodies import Bodies
from penstock.bench.load.client import Client, Exchange, TransferError
from penstock.bench.load.content import WORDS, Content, FirstWords, TokenIds, Words
from penstock.bench.load.workload import Block, Turn
from penstock.core.errors import ConfigurationError

_LONGEST_SHOWN = 300
# With fewer words, prompts would be too much alike.
_ENOUGH_WORDS = 16


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Tokens(msgspec.Struct):
    count: int


async def find_model(client: Client, wanted: str | None) -> str:
    """The model to ask for: `wanted`, or the first that the server lists. Raises ConfigurationError."""
    found = bytearray()

    def take(data: bytes, _: float) -> bool:
        found.extend(data)
        return len(found) > 1 << 24

    exchange = await _fetch(client, "GET", "/v1/models", None, take)
    url = client.address.url
    if exchange.status in (401, 403):
        raise _unauthorized(url, exchange)
    try:
        names = [model.id for model in msgspec.json.decode(found, type=_Models).data]
    except msgspec.MsgspecError:
        names = []
    if wanted is not None and (wanted in names or not names):
        return wanted
    if wanted is not None:
        raise ConfigurationError(f"--model {wanted!r} is not served by {url}; it has {', '.join(names[:10])}.")
    if not names:
        raise ConfigurationError(f"{url}/v1/models lists no model (HTTP {exchange.status}); say which with --model.")
    return names[0]


async def calibrate(client: Client, bodies: Bodies) -> Content:
    """Words of one token each where the server tells, else all, as long as they are in the mean; ids as they are."""
    if not isinstance(bodies.content, Words):
        return bodies.content
    whole = await _words_of_one_token(client, bodies.model)
    if len(whole) >= _ENOUGH_WORDS:
        return Words(1.0, whole)
    single, counts = msgspec.structs.replace(bodies, content=FirstWords()), []
    # What every prompt has besides is in both.
    for words in (1, len(WORDS)):
        answer = await ask_once(client, single, (Block((words,), words),))
        counts.append(answer.usage.prompt_tokens if answer.usage else 0)
    return Words(max(0.1, (counts[1] - counts[0]) / (len(WORDS) - 1)))


async def _words_of_one_token(client: Client, model: str) -> tuple[str, ...]:
    """Words that are one token at the beginning of a text and within it; none where there is no `/tokenize`."""

    async def tokens(text: str) -> int:
        found = bytearray()
        body = msgspec.json.encode({"model": model, "prompt": text, "add_special_tokens": False})
        exchange = await _fetch(client, "POST", "/tokenize", body, lambda data, _: found.extend(data))
        try:
            return msgspec.json.decode(found, type=_Tokens).count if exchange.status == 200 else 0
        except msgspec.MsgspecError:
            return 0

    if (alone := await tokens(WORDS[0])) == 0:
        return ()
    return tuple(
        [word for word in WORDS if await tokens(word) == 1 and await tokens(f"{WORDS[0]} {word}") == alone + 1]
    )


async def ask_once(client: Client, bodies: Bodies, blocks: tuple[Block, ...]) -> Answer:
    """One request outside of all figures, which must succeed. Raises ConfigurationError."""
    answer = Answer(bodies.choices)
    body = bodies.body(bodies.first(Turn(blocks, 2)), 2)
    exchange = await _fetch(client, "POST", bodies.path, body, answer.feed)
    url = client.address.url
    if exchange.status in (401, 403):
        raise _unauthorized(url, exchange)
    if exchange.status != 200:
        hint = " (--prompts text is for servers that take no token ids)" if isinstance(bodies.content, TokenIds) else ""
        said = f"HTTP {exchange.status}: {error_message(exchange.body)}"
        raise ConfigurationError(f"{url}{bodies.path} refuses a first request with {said}{hint}")
    answer.end()
    if answer.error is not None:
        raise ConfigurationError(f"{url}{bodies.path} could not serve a first request: {answer.error[1]}")
    if answer.usage is None:
        raise ConfigurationError(
            f"{url}{bodies.path} streams no usage, so tokens cannot be counted; the server must know "
            "stream_options.include_usage."
        )
    return answer


async def _fetch(client: Client, method: str, path: str, body: bytes | None, take: Any) -> Exchange:
    try:
        return await client.fetch(method, path, body, take)
    except TransferError as error:
        raise ConfigurationError(
            f"Nothing usable answers at {client.address.url}: {error.message}; start a server there, or give the "
            "address of one."
        ) from None


def error_message(body: bytes) -> str:
    """What the body of an error says, on one line."""
    try:
        value = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        value = body.decode(errors="replace")
    for name in ("error", "message", "detail"):
        if isinstance(value, dict) and name in value:
            value = value[name]
    text = " ".join(str(value).split())
    return text[:_LONGEST_SHOWN] or "(no message)"


def _unauthorized(url: str, exchange: Exchange) -> ConfigurationError:
    return ConfigurationError(
        f"{url} wants another API key (HTTP {exchange.status}: {error_message(exchange.body)}); give it in "
        "PENSTOCK_API_KEY or with --api-key -."
    )
