"""The prompt before texts that become vectors: what of it stays where texts are cut, and what is not pooled."""

from pathlib import Path

import pytest

from penstock.core.vectors import VectorModules
from penstock.text.tokenizer import load_tokenizer
from penstock.text.vector_prompts import VectorPrompt, vector_prompt
from support.tokenizers_made import add_bos, make_raw, save


@pytest.mark.parametrize("added", [True, False])
def test_a_prompt_is_counted_with_what_the_tokenizer_adds(tmp_path: Path, added: bool) -> None:
    tokenizer = load_tokenizer(save(add_bos(make_raw("byte_level")), tmp_path))
    length = len(tokenizer.encode("query: ", added))
    pooled, left_out = VectorModules(), VectorModules(includes_prompt=False)
    assert vector_prompt("query: ", tokenizer, pooled, added=added) == ("query: ", (length, 0), 0)
    assert vector_prompt("query: ", tokenizer, left_out, added=added) == ("query: ", (length, 0), length)
    # Without a prompt, what the tokenizer adds is pooled.
    assert vector_prompt("", tokenizer, left_out, added=added) == ("", (int(added), 0), 0)


def test_without_a_tokenizer_there_are_no_texts() -> None:
    assert vector_prompt("query: ", None, VectorModules(includes_prompt=False)) == VectorPrompt("query: ")
