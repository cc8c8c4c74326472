"""A model whose words are scripted, on a server that coding agents reach over HTTP, and a place for them to work."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.types import ASGIApp

from penstock.text.tokenizer import Tokenizer, load_tokenizer
from support.coding_agents import WatchedModel, Workplace
from support.seen_requests import SeenRequests
from support.speaking_model import QWEN_LIKE, serving_speaking_model
from support.tokenizers_made import add_bos, make_raw, save

# Agents have prompts of 50 kB, which this tokenizer makes into many tokens, and ask for long answers.
MAX_MODEL_LEN = 200_000


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(save(add_bos(make_raw("byte_level")), tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def served(tokenizer: Tokenizer) -> Iterator[WatchedModel]:
    seen: list[SeenRequests] = []

    def around(app: ASGIApp) -> ASGIApp:
        seen.append(SeenRequests(app))
        return seen[0]

    with serving_speaking_model(tokenizer, QWEN_LIKE, MAX_MODEL_LEN, around) as model:
        yield WatchedModel(model, seen[0])


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace.make(tmp_path)
