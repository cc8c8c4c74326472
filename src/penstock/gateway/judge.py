"""A small model of the operator's choice says of a request whether a cheap model may answer it."""

import asyncio
import logging
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import Scope

from penstock.access.tenants import tenant_of
from penstock.core.errors import PenstockError
from penstock.gateway.asked import Asked
from penstock.gateway.dispatch import Dispatch
from penstock.gateway.errors import ReplicaBroken, broken
from penstock.gateway.headers import request_head
from penstock.gateway.rules import Judge

logger = logging.getLogger("penstock.gateway")

_PATH = "/v1/chat/completions"
_GOOD = 200
_MOST_BYTES = 256 * 1024


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Completion(msgspec.Struct):
    choices: list[_Choice]


async def judged(dispatch: Dispatch, judge: Judge, asked: Asked, scope: Scope) -> bool:
    """Whether the judge says so. Where it does not say anything in time, it does not say so."""
    outcome = "failed"
    try:
        async with asyncio.timeout(judge.seconds):
            said = (await _answer(dispatch, judge, asked, scope)).strip().lower()
        outcome = "yes" if said.startswith(tuple(each.lower() for each in judge.answers)) else "no"
    except (PenstockError, TimeoutError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = error.message if isinstance(error, PenstockError) else str(error) or f"nothing in {judge.seconds:g} s"
        logger.warning("The judge %s says nothing of a request: %s", judge.model, why)
    dispatch.figures.judged[outcome] += 1
    return outcome == "yes"


async def _answer(dispatch: Dispatch, judge: Judge, asked: Asked, scope: Scope) -> str:
    """What the judge says. Raises PenstockError, msgspec.DecodeError, UnicodeDecodeError, RecursionError."""
    text = last_text(asked)[: judge.most_characters]
    messages = [{"role": "system", "content": judge.question}, {"role": "user", "content": text}]
    fields = {"model": judge.model, "messages": messages, "max_tokens": 8, "temperature": 0, **judge.fields}
    body = msgspec.json.encode(fields)
    wanted = dispatch.own(judge.model, len(body), tenant_of(Request(scope)), asked.rank)
    attempt = await dispatch.first(wanted)
    try:
        path = {"method": "POST", "path": _PATH, "raw_path": _PATH.encode(), "query_string": b""}
        head = request_head({**scope, **path}, attempt.replica, len(body), keyed=dispatch.keyed)
        async with attempt.replica.ask(head, body) as (_, exchange):
            begun, answer = await exchange.head(), await exchange.body(_MOST_BYTES)
    except ReplicaBroken as error:
        attempt.failed()
        raise broken(attempt.replica.name, error.message) from None
    else:
        if begun.is_fault:
            attempt.failed()
        elif not begun.is_refusal:
            attempt.succeeded()
    finally:
        attempt.over()
        dispatch.end(wanted, None)
    if begun.status != _GOOD:
        raise broken(attempt.replica.name, f"it answered with status {begun.status}")
    choices = msgspec.json.decode(answer, type=_Completion).choices
    return choices[0].message.content or "" if choices else ""


def last_text(asked: Asked) -> str:
    """What a request's user has said last."""
    for part in (asked.messages, asked.input, asked.prompt, asked.q):
        if bytes(part) not in (b"", b"null"):
            return _text(msgspec.json.decode(part))
    return ""


def _text(value: Any) -> str:
    """The text of a prompt, or of the last message of a user."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return _text(value.get("content", value.get("text", "")))
    if isinstance(value, list):
        users = [each for each in value if isinstance(each, dict) and each.get("role") == "user"]
        if users:
            return _text(users[-1])
        return " ".join(filter(None, map(_text, value)))
    return ""
