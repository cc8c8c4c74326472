"""A small corpus and its tokenizer."""

from pathlib import Path

import pytest

from penstock.bundled.corpus.generator import training
from training.data import Corpus, encode, make_corpus_of, render
from training.tokenizer import save_tokenizer, train_tokenizer

CONVERSATIONS = 300


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("training")


@pytest.fixture(scope="module")
def tokenizer(work: Path):
    made = train_tokenizer(render(training(5, index)) for index in range(CONVERSATIONS))
    save_tokenizer(made, work / "tokenizer")
    return made


@pytest.fixture(scope="module")
def corpus(tokenizer) -> Corpus:
    return make_corpus_of(tokenizer, encode(tokenizer, [training(5, index) for index in range(CONVERSATIONS)]))
