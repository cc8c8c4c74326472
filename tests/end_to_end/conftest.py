"""Two servers for most tests of the folder."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from support.checkpoints import make
from support.databases import postgres
from support.live_server import RunningServer, serving
from support.waiting import PATIENCE

__all__ = ["postgres"]


@pytest.fixture(scope="session")
def served_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llama", tmp_path_factory.mktemp("models") / "tiny-llama", max_position_embeddings=2048)


@pytest.fixture(scope="session")
def server(served_checkpoint: Path) -> Iterator[RunningServer]:
    with serving(served_checkpoint, "--threads", "1") as running:
        yield running


@pytest.fixture(scope="session")
def bundled(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """What is served where no model is named."""
    with serving(None, "--threads", "2" if request.config.getoption("slow") else "1") as running:
        yield running


@pytest.fixture(scope="module")
def client_of() -> Iterator[Callable[[RunningServer], openai.OpenAI]]:
    """OpenAI's clients of servers, which the module's end closes."""
    with contextlib.ExitStack() as stack:
        yield lambda server: stack.enter_context(
            openai.OpenAI(base_url=server.base + "/v1", api_key="unused", max_retries=0, timeout=PATIENCE)
        )
