"""Prompts that one real server computes and another one goes on with, through a real gateway: no client sees it."""

import contextlib
import itertools
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.core.handover import HANDOVER, OFFER, Transport
from penstock.kernels.cpu.native import OBSTACLE
from support.fleets import fleet_up
from support.operator import Operator
from support.processes import Process, fleet, started
from support.streams import Stream, read, reading
from support.transports import ENGINES, over_tcp
from support.waiting import PATIENCE, until

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

TEXT = "The rain that fell on the old house by the sea was heard by the lamp that stood in the window. " * 6
MESSAGES = [{"role": "user", "content": f"Write a haiku about this: {TEXT}"}]
LONG = {"max_tokens": 40, "seed": 7, "ignore_eos": True}
SCHEMA = {"type": "object", "properties": {"line": {"type": "string"}}, "required": ["line"]}
TOOL = {"type": "function", "function": {"name": "note", "parameters": {**SCHEMA, "additionalProperties": False}}}
CHAT, TEXTS = "/v1/chat/completions", "/v1/completions"
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat, greedy": (CHAT, {"messages": MESSAGES, "temperature": 0, **LONG}),
    "chat, sampled": (CHAT, {"messages": MESSAGES, "temperature": 1.1, "return_token_ids": True, **LONG}),
    "log probabilities": (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 4, **LONG}),
    "text, log probabilities": (TEXTS, {"prompt": TEXT, "logprobs": 3, "temperature": 0.8, **LONG}),
    "penalties, stop": (TEXTS, {"prompt": TEXT, "frequency_penalty": 0.8, "stop": ["zzz", "the l"], **LONG}),
    "two": (TEXTS, {"prompt": TEXT, "n": 2, "temperature": 1.0, **LONG}),
    "two prompts": (TEXTS, {"prompt": [TEXT, TEXT + "The lamp"], **LONG}),
    "scored": (TEXTS, {"prompt": TEXT, "echo": True, "logprobs": 2, **LONG}),
    "one token": (TEXTS, {"prompt": TEXT, "max_tokens": 1, "seed": 3}),
    "to its end": (CHAT, {"messages": MESSAGES, "max_tokens": 200, "temperature": 0, "seed": 5}),
    "schema": (
        CHAT,
        {
            "messages": MESSAGES,
            "max_tokens": 60,
            "seed": 3,
            "response_format": {"type": "json_schema", "json_schema": {"name": "poem", "schema": SCHEMA}},
        },
    ),
    "tool": (
        CHAT,
        {
            "messages": MESSAGES,
            "max_tokens": 60,
            "seed": 4,
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "note"}},
        },
    ),
    "messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 40, "temperature": 0}),
    "responses": ("/v1/responses", {"input": TEXT, "max_output_tokens": 40, "temperature": 0, "seed": 7}),
}
# What no stream has that another server goes on with: their answers come whole from the one that decodes.
UNTRACKED = {"log probabilities", "text, log probabilities", "two"}
# Other things than a prompt that is computed once, and what ends with its first token: nothing is handed over.
WHOLE = {"two prompts", "scored", "one token"}
HANDED = "penstock_gateway_handed_over_total"
# What is another one in each answer.
_OWN = re.compile(r'"(id|item_id|response_id)":"[^"]*"|"(created|created_at|completed_at)":[0-9.]+|call_[0-9a-f]+')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("apart")
    (folder / "secret").write_text("0123456789abcdef" * 4)
    # Whatever the replicas' speeds, so that the tests see what is handed over.
    (folder / "always.toml").write_text(
        f'[handover]\nwhen = "always"\nleast_tokens = 8\n[timeouts]\nconnect = {PATIENCE}\nsilence = {PATIENCE}\n'
    )
    return folder


def server(folder: Path, *options: str) -> contextlib.AbstractContextManager[Process]:
    return started(folder, "serve", "haiku", "--speculative", "off", "--threads", "1", *options)


def part(folder: Path, role: str, *options: str) -> contextlib.AbstractContextManager[Process]:
    """A server with a role."""
    return server(folder, "--role", role, "--prefix-secret-file", str(folder / "secret"), *options)


@contextlib.contextmanager
def gateway(folder: Path, *replicas: Process, config: str = "always.toml") -> Iterator[Process]:
    urls = [part for each in replicas for part in ("--replica", each.base)]
    with started(folder, "gateway", *urls, "--config", str(folder / config)) as running:
        until(lambda: running.log.read_text().count(" is ready") == len(replicas))
        yield running


@pytest.fixture(scope="module")
def alone(folder: Path) -> Iterator[Process]:
    """One that computes prompts and outputs."""
    with server(folder) as running:
        yield running


@pytest.fixture(scope="module")
def prefill(folder: Path) -> Iterator[Process]:
    with part(folder, "prefill") as running:
        yield running


@pytest.fixture(scope="module")
def decode(folder: Path) -> Iterator[Process]:
    with part(folder, "decode", "--admin-socket", str(folder / "decode")) as running:
        yield running


@pytest.fixture(scope="module")
def passing(folder: Path, prefill: Process, decode: Process) -> Iterator[Process]:
    with gateway(folder, prefill, decode) as running:
        yield running


def metric(of: Process, name: str) -> float:
    text = httpx.get(of.base + "/metrics", timeout=PATIENCE).text
    return sum(map(float, re.findall(rf"^{name} (\S+)$", text, re.MULTILINE)))


def pulled(decode: Process) -> float:
    """Blocks that a replica has read from others."""
    return metric(decode, r'penstock_kv_tier_blocks_read_total\{tier="peer"\}')


def computed(of: Process) -> float:
    """Tokens of prompts that it has computed."""
    return metric(of, "penstock_prefill_tokens_total")


def plain(text: str) -> str:
    """An answer without what is its own."""
    return _OWN.sub("", text)


def told(text: str) -> dict[str, Any]:
    """All that a stream says, wherever it was cut into events: that depends on how busy a server is."""
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    found: dict[str, Any] = {}
    for event in events:
        # Others of the Responses API say again what these have said.
        if not event.get("type", "").startswith("response.") or event["type"].endswith((".delta", ".completed")):
            _gather(event, found, "")
    assert found
    return found


def _gather(value: Any, found: dict[str, Any], where: str) -> None:
    """The values of an event by where they are: texts and lists of tokens are joined, of others the last counts."""
    if isinstance(value, dict):
        where = f"{where}[{value['index']}]" if "index" in value else where
        for name, each in value.items():
            _gather(each, found, f"{where}.{name}")
    elif isinstance(value, list) and any(name in where for name in ("logprobs", "token_ids")):
        found.setdefault(where, []).extend(value)
    elif isinstance(value, list):
        for each in value:
            _gather(each, found, where)
    elif isinstance(value, str) and where.endswith((".content", ".text", ".arguments", ".partial_json", ".delta")):
        found[where] = found.get(where, "") + value
    elif where == ".message.usage.output_tokens":
        # Of the first event of messages: the tokens that its first output had, which depends on how busy a server is.
        assert value > 0
    elif where.endswith(("_reason", "_tokens", ".seed", ".type", ".name")) and value is not None:
        found[where] = value


def new(asked: dict[str, Any], number: int) -> dict[str, Any]:
    """The same of a prompt that no cache has."""
    return {name: _of(value, number) for name, value in asked.items()}


def _of(value: Any, number: int) -> Any:
    if isinstance(value, str):
        return value.replace("The rain", f"The rain of day {number}")
    if isinstance(value, list):
        return [_of(each, number) for each in value]
    return new(value, number) if isinstance(value, dict) else value


@pytest.mark.parametrize("kind", ASKED)
def test_streams_and_answers_are_those_of_one_server(
    kind: str, passing: Process, prefill: Process, decode: Process, alone: Process
) -> None:
    """Texts, tokens, log probabilities, reasons and usage; of whole answers every byte but ids and times."""
    path, body = ASKED[kind]
    number = list(ASKED).index(kind)
    numbers = itertools.count(1000 * number)
    for stream in (True, False):
        handed = False
        # Where a machine is so busy that all tokens come at once, an answer is complete before it could be handed over.
        while not handed:
            asked = {"model": "haiku", **new(body, next(numbers)), "stream": stream}
            if stream and path in (CHAT, TEXTS):
                asked["stream_options"] = {"include_usage": True}
            before, at_decode, there = metric(passing, HANDED), computed(decode), pulled(decode)
            through = httpx.post(passing.base + path, json=asked, timeout=PATIENCE)
            straight = httpx.post(alone.base + path, json=asked, timeout=PATIENCE)
            assert through.status_code == straight.status_code == 200, through.text
            said_by = told if stream else plain
            assert said_by(through.text) == said_by(straight.text)
            handed = metric(passing, HANDED) > before
            if kind in WHOLE:
                assert not handed
                break
        if kind in WHOLE:
            continue
        until(lambda at=there: pulled(decode) > at)
        # The last block at most, the first token, and nothing else.
        assert computed(decode) - at_decode <= 17
        first = decode if not stream or kind in UNTRACKED else prefill
        assert through.headers["x-penstock-replica"] == first.base


def test_the_first_token_does_not_wait_for_who_decodes(
    passing: Process, decode: Process, folder: Path, alone: Process
) -> None:
    right = Stream()
    asked = (TEXTS, {**new(ASKED["penalties, stop"][1], 100), "stream": True})
    read(alone.base, asked, right)
    operator = Operator(folder / "decode")
    operator.pause(True)
    with reading(passing.base, [asked]) as (stream,):
        until(lambda: stream.text())
        assert not stream.ended and right.text().startswith(stream.text())
        operator.pause(False)
    assert stream.text() == right.text()


def test_who_decodes_computes_the_prompt_where_who_has_computed_it_is_gone(
    folder: Path, decode: Process, alone: Process
) -> None:
    with part(folder, "prefill") as victim, gateway(folder, victim, decode) as passing:
        _goes_on_without(victim, decode, passing, alone, 200)


def _goes_on_without(victim: Process, decode: Process, passing: Process, alone: Process, number: int) -> None:
    """Killed behind the first token, before anything was pulled."""
    asked = [(TEXTS, {**new(ASKED["penalties, stop"][1], number + each), "stream": True}) for each in range(3)]
    right = [Stream() for _ in asked]
    for each, stream in zip(asked, right, strict=True):
        read(alone.base, each, stream)
    before = computed(decode)
    decode.process.send_signal(signal.SIGSTOP)
    try:
        with reading(passing.base, asked) as streams:
            until(lambda: all(stream.text() for stream in streams))
            victim.process.kill()
            victim.process.wait(PATIENCE)
            decode.process.send_signal(signal.SIGCONT)
    finally:
        decode.process.send_signal(signal.SIGCONT)
    assert [stream.text() for stream in streams] == [stream.text() for stream in right]
    assert computed(decode) - before > 3 * 100


@pytest.mark.parametrize("transport", [ENGINES[0], pytest.param(ENGINES[1], marks=pytest.mark.slow)])
def test_transfer_engines_move_blocks_between_servers(transport: Transport, folder: Path, alone: Process) -> None:
    """The same bits, and nothing over TCP; then the one that has computed prompts is killed."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(over_tcp(transport))
        prefill, decode = (
            stack.enter_context(part(folder, role, "--kv-transport", transport)) for role in ("prefill", "decode")
        )
        passing = stack.enter_context(gateway(folder, prefill, decode))
        path, body = ASKED["text, log probabilities"]
        for number in itertools.count(600 + 1000 * ENGINES.index(transport)):
            asked = {"model": "haiku", **new(body, number)}
            before, at_decode = metric(passing, HANDED), computed(decode)
            through = httpx.post(passing.base + path, json=asked, timeout=PATIENCE)
            straight = httpx.post(alone.base + path, json=asked, timeout=PATIENCE)
            assert plain(through.text) == plain(straight.text)
            if metric(passing, HANDED) > before:
                break
        until(lambda: pulled(decode) > 5)
        assert computed(decode) - at_decode <= 17
        _goes_on_without(prefill, decode, passing, alone, 700 + 1000 * ENGINES.index(transport))
        assert f"cannot be read by {transport}" not in decode.log.read_text()


def test_another_secret_or_a_client_gives_no_place(decode: Process, alone: Process) -> None:
    """Whoever sends a request: blocks are asked for where those are who have the secret."""
    asked = {"model": "haiku", **new(ASKED["penalties, stop"][1], 300)}
    place = b'{"place":"127.0.0.1:9 00112233445566778899aabbccddeeff"}'
    right = httpx.post(alone.base + TEXTS, json=asked, timeout=PATIENCE)
    found = httpx.post(decode.base + TEXTS, json=asked, headers={OFFER.decode(): place.decode()}, timeout=PATIENCE)
    assert plain(found.text) == plain(right.text)
    assert "are of another model, form or secret" in decode.log.read_text()
    for strange in ("no offer", '{"cached": -1}'):
        wrong = httpx.post(decode.base + TEXTS, json=asked, headers={OFFER.decode(): strange}, timeout=PATIENCE)
        assert wrong.status_code == 400 and OFFER.decode() in wrong.text
    much = httpx.post(decode.base + TEXTS, json=asked, headers={OFFER.decode(): '{"cached": 99999}'}, timeout=PATIENCE)
    usage = much.json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"]
    two = {**asked, "prompt": ["Rain", "Snow"]}
    wrong = httpx.post(decode.base + TEXTS, json=two, headers={OFFER.decode(): '{"cached": 1}'}, timeout=PATIENCE)
    assert wrong.status_code == 400 and "is of one prompt" in wrong.text


def test_clients_of_a_gateway_cannot_ask_for_it(passing: Process, alone: Process) -> None:
    asked = {"model": "haiku", "prompt": "Rain", "max_tokens": 4, "temperature": 0, "seed": 1}
    headers = {HANDOVER.decode(): "1", OFFER.decode(): "no offer"}
    found = httpx.post(passing.base + TEXTS, json=asked, headers=headers, timeout=PATIENCE)
    assert plain(found.text) == plain(httpx.post(alone.base + TEXTS, json=asked, timeout=PATIENCE).text)


def test_who_computes_prompts_answers_alone_where_nothing_else_can(
    folder: Path, prefill: Process, alone: Process
) -> None:
    asked = {"model": "haiku", **new(ASKED["penalties, stop"][1], 400)}
    with gateway(folder, prefill) as passing:
        found = httpx.post(passing.base + TEXTS, json=asked, timeout=PATIENCE)
        assert plain(found.text) == plain(httpx.post(alone.base + TEXTS, json=asked, timeout=PATIENCE).text)
        assert fleet(passing)["retries"]["sent"] == 0


@pytest.mark.slow
def test_other_layouts_hand_prompts_over_where_results_may_be_unlike(folder: Path, decode: Process) -> None:
    """Without that, who decodes computes them."""
    (folder / "unlike.toml").write_text((folder / "always.toml").read_text() + "[retries]\nunlike = true\n")
    asked = {"model": "haiku", **ASKED["chat, greedy"][1], "stream": True}
    warned = decode.log.read_text().count("are of another model, form or secret")
    with part(folder, "prefill", "--tensor-parallel-size", "2") as ranks:
        for config, is_handed in (("always.toml", False), ("unlike.toml", True)):
            with gateway(folder, ranks, decode, config=config) as passing:
                for number in itertools.count(9000 + 100 * is_handed):
                    before = pulled(decode)
                    answer = httpx.post(passing.base + CHAT, json=new(asked, number), timeout=PATIENCE)
                    assert answer.status_code == 200 and told(answer.text)
                    if not is_handed or metric(passing, HANDED):
                        break
                assert bool(metric(passing, HANDED)) == is_handed
                if is_handed:
                    until(lambda before=before: pulled(decode) > before)
    assert decode.log.read_text().count("are of another model, form or secret") == warned


FLEET = f"""
[gateway]
port = 0

[gateway.handover]
when = "always"
least_tokens = 8

[gateway.timeouts]
connect = {PATIENCE}
silence = {PATIENCE}

[[model]]
name = "haiku"
role = "decode"
options = {{ speculative = "off" }}

[[model]]
name = "prompts"
role = "prefill"
of = "haiku"
options = {{ speculative = "off" }}
"""


def test_a_fleet_has_both_from_one_file(tmp_path: Path, alone: Process) -> None:
    asked = {"model": "haiku", **new(ASKED["penalties, stop"][1], 500)}
    with fleet_up(tmp_path, FLEET) as running:
        status = running.until_settled()
        found = httpx.post(status.gateway.url + TEXTS, json=asked, timeout=PATIENCE)
        assert plain(found.text) == plain(httpx.post(alone.base + TEXTS, json=asked, timeout=PATIENCE).text)
        told = httpx.get(status.gateway.url + "/metrics", timeout=PATIENCE).text
        assert "penstock_gateway_handed_over_total 1" in told
        # Both kinds serve one model.
        [model] = httpx.get(status.gateway.url + "/v1/models", timeout=PATIENCE).json()["data"]
        assert model["id"] == "haiku" and {each.model for each in status.replicas} == {"haiku", "prompts"}
