"""How outputs of encoder-decoders begin: generation_config.json before config.json."""

from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import ModelFileError
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.start_tokens import StartTokens, start_tokens


def read(config: dict[str, Any], generation: dict[str, Any] | None = None) -> StartTokens:
    return start_tokens(Checkpoint(Path("model"), config, generation or {}, {}), 100)


def test_what_generation_is_told_comes_first() -> None:
    config = {"decoder_start_token_id": 5, "forced_bos_token_id": 7, "bad_words_ids": [[9]]}
    assert read(config) == StartTokens(5, 7, (9,))
    assert read(config, {"decoder_start_token_id": 6}) == StartTokens(6, 7, (9,))
    assert read({}, {"decoder_start_token_id": 0}) == StartTokens(0)


def test_an_output_begins_as_a_text_does_where_nothing_else_is_said() -> None:
    assert read({"bos_token_id": 3}).start == 3


def test_words_of_several_tokens_are_no_tokens_that_never_come() -> None:
    assert read({"decoder_start_token_id": 5, "bad_words_ids": [[9], [1, 2]]}).never == (9,)


@pytest.mark.parametrize(
    "config, says",
    [
        ({}, "decoder_start_token_id, with which outputs begin"),
        ({"decoder_start_token_id": 100}, "0 to 99"),
        ({"decoder_start_token_id": True}, "0 to 99"),
        ({"decoder_start_token_id": 1, "forced_bos_token_id": -1}, "forced_bos_token_id has -1"),
        ({"decoder_start_token_id": 1, "bad_words_ids": [9]}, "a list of lists"),
    ],
)
def test_what_makes_no_sense_is_refused(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelFileError, match=says):
        read(config)
