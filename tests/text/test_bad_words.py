"""Words as the sequences of tokens that would write them."""

from pathlib import Path

import pytest

from penstock.core.sampling import SamplingParams
from penstock.text.bad_words import bad_words_ids, with_words_as_ids
from penstock.text.tokenizer import Tokenizer, load_tokenizer
from support.tokenizers_made import KINDS, add_bos, make_raw, save


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(save(add_bos(make_raw(request.param)), tmp_path_factory.mktemp("tokenizer")))


def contains(ids: list[int], words: list[tuple[int, ...]]) -> bool:
    return any(tuple(ids[place : place + len(word)]) == word for word in words for place in range(len(ids)))


@pytest.mark.parametrize("word", ["fox", " fox", "lazy dog", "café"])
def test_a_word_is_found_where_a_text_begins_and_within_it(tokenizer: Tokenizer, word: str) -> None:
    words = bad_words_ids([word], tokenizer)
    bare = word.strip()
    for text in (bare, f" {bare}", f"the {bare}"):
        assert contains(tokenizer.encode(text, add_special_tokens=False), words)
    assert contains(tokenizer.encode_continuation(f" {bare}"), words)
    assert not contains(tokenizer.encode("the quick brown"), words)
    # No special token is put around a word.
    assert not any(tokenizer.bos_token_id in ids for ids in words)
    assert len(set(words)) == len(words)


def test_white_space_alone_is_a_word(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(make_raw("byte_level"), tmp_path))
    assert tuple(tokenizer.encode("\n", False)) in bad_words_ids(["\n"], tokenizer)


def test_words_are_added_to_what_is_there(tokenizer: Tokenizer) -> None:
    params = with_words_as_ids(SamplingParams(bad_words=("fox",), bad_words_ids=((9, 9),)), tokenizer)
    assert params.bad_words == () and params.bad_words_ids[0] == (9, 9) and len(params.bad_words_ids) > 1
    assert with_words_as_ids(params, tokenizer) is params


def test_without_a_tokenizer_words_stay_words() -> None:
    params = SamplingParams(bad_words=("fox",))
    assert with_words_as_ids(params, None) is params
