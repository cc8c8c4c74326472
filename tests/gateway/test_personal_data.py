"""The example of a guardrail, before a gateway; with Presidio where that is installed."""

import contextlib
import importlib.util
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gateway.conftest import Start
from penstock.gateway.guardrail_options import Guardrail
from support.scripted_http import Received, Step, answer
from support.waiting import PATIENCE

EXAMPLE = Path(__file__).parents[2] / "deploy" / "guardrails" / "personal_data.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("personal_data", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_an_at_sign(text: str) -> list[tuple[int, int, str]]:
    """As simple as can be: what has an @ in it."""
    return [(*found.span(), "EMAIL_ADDRESS") for found in re.finditer(r"[\w.]+@[\w.]+\w", text)]


@pytest.fixture
def serving(example: ModuleType) -> Iterator[Callable[[Any], str]]:
    """Starts the example with what finds personal data; its URL."""
    with contextlib.ExitStack() as stack:

        def start(find: Any) -> str:
            server = stack.enter_context(example.server(0, find))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}"

        yield start


@pytest.mark.parametrize("kind", ["simple", "presidio"])
def test_addresses_do_not_get_to_a_model_nor_out_of_it(
    gateway: Start, example: ModuleType, serving: Callable[[Any], str], kind: str
) -> None:
    if kind == "presidio":
        pytest.importorskip("presidio_analyzer")
    url = serving(example.presidio() if kind == "presidio" else by_an_at_sign)

    def script(request: Received) -> list[Step]:
        leaks = "leak" in request.body["prompt"]
        return answer(b'{"choices": [{"text": "%s"}]}' % (b"It is bob@example.com." if leaks else b"Good."))

    rail = Guardrail(name="personal data", url=url, when="both", seconds=PATIENCE)
    started = gateway(script, guardrail=(rail,))
    answered = started.complete(
        prompt="Write to alice.smith@example.com, then to bob@example.com.", user="carol@example.com"
    )
    assert answered.status_code == 200
    assert started.servers[0].asked[0].body == {
        "model": "scripted",
        "prompt": "Write to <EMAIL_ADDRESS>, then to <EMAIL_ADDRESS>.",
        "user": "<EMAIL_ADDRESS>",
    }
    refused = started.complete(prompt="leak")
    assert refused.status_code == 400 and refused.json()["error"]["message"] == (
        "The guardrail personal data refuses this answer: It has personal data: EMAIL_ADDRESS."
    )


def test_what_overlaps_is_masked_once(example: ModuleType) -> None:
    found = [(0, 5, "A"), (2, 8, "B"), (3, 4, "C"), (10, 11, "D")]
    assert example.masked({"model": "0123456789abc", "x": ["0123456789abc", 5]}, lambda _: found) == {
        "model": "0123456789abc",
        "x": ["<A><B>89<D>bc", 5],
    }
