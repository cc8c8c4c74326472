"""Which tokens may come, by a real model: with drafts and grammars, alone and beside others, the same tokens."""

from typing import Any

import pytest

from penstock import LLM, Grammar, SamplingParams
from penstock.kernels.cpu.native import OBSTACLE

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

PROMPT = "Write a haiku about rain."
COMMON: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True}
FREE = SamplingParams(temperature=0.0, **COMMON)
# Letters and spaces alone.
WORDS = Grammar.regex("[a-z ]{40}")
FEW = set(b"abcdefghi ")


def engine(speculative: str) -> LLM:
    return LLM("haiku", threads=1, speculative=speculative, max_model_len=256)


@pytest.fixture(scope="module")
def plain() -> LLM:
    return engine("off")


@pytest.fixture(scope="module")
def free(plain: LLM) -> Any:
    """What comes where nothing is forbidden."""
    return plain.generate([PROMPT], FREE)[0]


def words_of(free: Any) -> tuple[str, ...]:
    return tuple(sorted({word.strip(",.") for word in free.text.split()} - {""})[:6])


def pairs_of(free: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(zip(free.token_ids, free.token_ids[1:], strict=False))[:8]


@pytest.fixture(scope="module")
def asked(plain: LLM, free: Any) -> list[SamplingParams]:
    """Requests that forbid what would come: words, pairs of tokens, all but some letters."""
    assert plain.tokenizer is not None
    pieces = [plain.tokenizer.table.piece(token) for token in range(plain.vocab_size)]
    letters = tuple(token for token, piece in enumerate(pieces) if piece and set(piece) <= FEW)
    return [
        SamplingParams(temperature=0.0, bad_words=words_of(free), **COMMON),
        SamplingParams(temperature=0.0, bad_words_ids=pairs_of(free), logprobs=2, **COMMON),
        SamplingParams(temperature=0.8, seed=5, allowed_token_ids=letters, logprobs=0, **COMMON),
        SamplingParams(
            temperature=0.8, seed=6, grammar=WORDS, allowed_token_ids=letters, bad_words=("a",), max_tokens=60
        ),
    ]


def outcome(llm: LLM, params: list[SamplingParams]) -> list[Any]:
    found = llm.generate([PROMPT] * len(params), params)
    return [(list(each.token_ids), each.finish_reason, each.logprobs) for each in found]


def test_what_is_forbidden_does_not_come(plain: LLM, free: Any, asked: list[SamplingParams]) -> None:
    words, pairs, letters, grammar = plain.generate([PROMPT] * 4, asked)
    assert plain.tokenizer is not None
    for word in words_of(free):
        for text in (word, f" {word}"):
            ids = plain.tokenizer.encode(text, False)
            assert not any(words.token_ids[place : place + len(ids)] == ids for place in range(len(words.token_ids)))
    assert not set(pairs_of(free)) & set(zip(pairs.token_ids, pairs.token_ids[1:], strict=False))
    assert set(letters.text.encode()) <= FEW
    assert set(grammar.text.encode()) <= FEW and (grammar.finish_reason, len(grammar.text)) == ("stop", 40)


@pytest.mark.parametrize("speculative", ["ngram", "draft"])
def test_neither_drafts_nor_companions_change_a_token(
    plain: LLM, asked: list[SamplingParams], speculative: str
) -> None:
    alone = [outcome(plain, [params])[0] for params in asked]
    assert outcome(plain, asked) == alone
    drafting = engine(speculative)
    assert outcome(drafting, asked) == alone
    assert [outcome(drafting, [params])[0] for params in asked] == alone


def test_where_no_token_is_left_the_request_says_so(plain: LLM) -> None:
    assert plain.tokenizer is not None
    digits = tuple(plain.tokenizer.encode("7", False))
    (found,) = plain.generate([PROMPT], SamplingParams(grammar=WORDS, allowed_token_ids=digits, max_tokens=8))
    assert found.finish_reason == "error" and "allowed_token_ids" in (found.samples[0].error or "")
