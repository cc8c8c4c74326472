"""A conversation that is idle while others fill the pool goes on from the disk, and no bit of it changes."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.kernels.cpu.native import OBSTACLE
from support.live_server import RunningServer, serving
from support.waiting import PATIENCE, until

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

# A pool for one request of the longest context and little more.
OPTIONS = ("--threads", "1", "--speculative", "off", "--max-model-len", "1024", "--max-num-seqs", "1")
POOL = ("--kv-cache-memory", str(72 * 65536))
LUCK = random.Random(0)
TEXT = " ".join(
    f"In year {LUCK.randrange(1000, 2000)} the ship of {LUCK.randrange(99)} men came home." for _ in range(9)
)


class Client:
    """Asks a server, and why its requests took as long as they did."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server

    def _get(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(self._server.base + path, timeout=PATIENCE).json()
        return found

    def post(self, path: str, **body: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The answer, and where the prompt was found."""
        answer = httpx.post(self._server.base + path, json=body, timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        where = f"/v1/requests/{answer.headers['x-request-id']}/explain"
        until(lambda: self._get(where)["state"] == "ended")
        return answer.json(), self._get(where)["prefix"]["tiers"]

    def respond(self, text: str, previous: str | None = None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The next turn of a conversation."""
        return self.post(
            "/v1/responses", input=text, previous_response_id=previous, max_output_tokens=12, temperature=0.7, seed=3
        )

    def flood(self) -> None:
        """Others need all of the pool, and what was to be written is."""
        for number in range(2):
            luck = random.Random(number)
            prompt = [luck.randrange(300, 4096) for _ in range(1000)]
            self.post("/v1/completions", prompt=prompt, max_tokens=2)

        def settled() -> bool:
            # What was written is told with the next step.
            self.post("/v1/completions", prompt=[7, 8, 9], max_tokens=1)
            return self._server.metric("penstock_kv_tier_blocks_written_total") >= 2 * 62

        until(settled)


def said(response: dict[str, Any]) -> list[Any]:
    return [item["content"] for item in response["output"]]


@pytest.fixture(scope="module")
def plain() -> Iterator[RunningServer]:
    """A server without a disk."""
    with serving(None, *OPTIONS, *POOL) as running:
        yield running


def test_a_conversation_goes_on_from_the_disk(plain: RunningServer, tmp_path: Path) -> None:
    with serving(None, *OPTIONS, *POOL, "--kv-disk", str(tmp_path)) as disk:
        turns: dict[str, list[Any]] = {}
        for name, server in (("plain", plain), ("disk", disk)):
            client = Client(server)
            first, _ = client.respond(TEXT)
            second, _ = client.respond("And then?", first["id"])
            if name == "disk":
                client.flood()
                assert server.metric("penstock_kv_tier_blocks_kept") >= second["usage"]["input_tokens"] // 16
            third, tiers = client.respond("And after that?", second["id"])
            turns[name] = [said(each) for each in (first, second, third)]
            known = (second["usage"]["total_tokens"] - 1) // 16 * 16
            cached = third["usage"]["input_tokens_details"]["cached_tokens"]
        assert turns["disk"] == turns["plain"]
        from_disk = next(tier for tier in tiers if tier["tier"] == "disk")
        assert from_disk["tokens"] >= known - 48 and from_disk["seconds"] > 0 and from_disk["why_left"] is None
        assert cached == sum(tier["tokens"] for tier in tiers)


def test_a_chat_with_a_key_goes_on_from_the_disk_of_an_earlier_server_to_the_bit(
    plain: RunningServer, tmp_path: Path
) -> None:
    asked = {
        "max_tokens": 12,
        "temperature": 0.7,
        "seed": 5,
        "logprobs": True,
        "top_logprobs": 3,
        "prompt_cache_key": "a",
    }
    turns = [{"role": "user", "content": TEXT}]
    first, _ = Client(plain).post("/v1/chat/completions", messages=turns, **asked)
    turns += [first["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    turns[1] = {name: turns[1][name] for name in ("role", "content")}
    expected, _ = Client(plain).post("/v1/chat/completions", messages=turns, **asked)
    disk = (*OPTIONS, *POOL, "--kv-disk", str(tmp_path))
    with serving(None, *disk) as server:
        again, _ = Client(server).post("/v1/chat/completions", messages=turns[:1], **asked)
        assert again["choices"] == first["choices"]
        Client(server).flood()
    with serving(None, *disk) as server:
        found, tiers = Client(server).post("/v1/chat/completions", messages=turns, **asked)
        assert found["choices"] == expected["choices"]
        assert tiers[1]["tier"] == "disk" and tiers[1]["tokens"] >= first["usage"]["prompt_tokens"] // 16 * 16
        assert found["usage"]["prompt_tokens_details"]["cached_tokens"] == tiers[1]["tokens"]
        # It is kept there since, and was before.
        assert server.metric("penstock_kv_tier_blocks_kept") >= first["usage"]["prompt_tokens"] // 16


def test_a_marked_prefix_is_kept_on_the_disk_for_its_time_also_across_a_restart(tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "max_tokens": 4,
        "system": [{"type": "text", "text": TEXT * 3, "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
    }
    options = (*OPTIONS, *POOL, "--kv-disk", str(tmp_path))

    def usage(client: Client, question: str) -> tuple[int, int]:
        answer, _ = client.post("/v1/messages", messages=[{"role": "user", "content": question}], **asked)
        told = answer["usage"]
        return told["cache_read_input_tokens"], told["cache_creation_input_tokens"]

    with serving(None, *options) as server:
        client = Client(server)
        read, created = usage(client, "And then?")
        # More than the quarter of the pool, which is 18 blocks.
        assert read == 0 and created > 18 * 16
        client.flood()
        assert usage(client, "And after that?") == (created, 0)
        assert server.metric("penstock_kv_tier_blocks_kept") == created // 16
    with serving(None, *options) as server:
        assert usage(Client(server), "And before?") == (created, 0)
