"""Two texts as one sequence, as the tokenizer library itself puts them together and cuts them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import processors

from penstock.core.errors import InvalidParameter
from penstock.text.pairs import Cut, encode_pairs
from penstock.text.tokenizer import load_tokenizer
from support.tokenizers_made import make_raw, save, write_words

WORDS = [f"word{number}" for number in range(20)]
_ENDS = [("<s>", 1), ("</s>", 2)]
TEMPLATES: Mapping[str, tuple[str, Any]] = {
    "bert": ("word_piece", processors.BertProcessing(("</s>", 2), ("<s>", 1))),
    "roberta": ("byte_level", processors.RobertaProcessing(("</s>", 2), ("<s>", 1))),
    "xlm-roberta": (
        "metaspace",
        processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=_ENDS),
    ),
    "types": (
        "word_piece",
        processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=_ENDS),
    ),
    "none": ("byte_level", processors.ByteLevel()),
}
TEXTS = st.lists(st.sampled_from([*WORDS, "the fox", "naïve", "jumps 日本"]), min_size=1, max_size=12).map(" ".join)


@pytest.fixture(scope="module")
def raws() -> dict[str, tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]]:
    """Each tokenizer, and the same again to compare with."""
    found = {}
    for name, (kind, template) in TEMPLATES.items():
        raw = make_raw(kind)
        raw.post_processor = template
        found[name] = raw, tokenizers.Tokenizer.from_str(raw.to_str())
    return found


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=40)
@given(
    first=TEXTS,
    seconds=st.lists(TEXTS, min_size=1, max_size=3),
    most=st.integers(6, 40),
    end=st.sampled_from(["left", "right"]),
)
def test_pairs_are_those_of_the_library(
    raws: Any, name: str, first: str, seconds: list[str], most: int, end: str
) -> None:
    raw, library = raws[name]
    library.no_truncation()
    whole = [library.encode(first, second) for second in seconds]
    pairs = encode_pairs(raw, first, seconds)
    assert [pair.ids for pair in pairs] == [each.ids for each in whole]
    assert [pair.second for pair in pairs] == [each.type_ids.index(1) if 1 in each.type_ids else 0 for each in whole]
    library.enable_truncation(most, strategy="longest_first", direction=end)
    cut = encode_pairs(raw, first, seconds, Cut(most, end))
    assert [pair.ids for pair in cut] == [library.encode(first, second).ids for second in seconds]
    assert [pair.cut for pair in cut] == [len(one.ids) - len(other.ids) for one, other in zip(pairs, cut, strict=True)]


def test_the_second_text_alone_can_be_cut(raws: Any) -> None:
    raw, _ = raws["types"]
    (whole,), (cut,) = (
        encode_pairs(raw, "word1", ["the fox jumps over"], each) for each in (None, Cut(None, "right", 2))
    )
    assert cut.ids[: whole.second + 2] == whole.ids[: whole.second + 2] and len(cut.ids) == whole.second + 3
    assert cut.cut == len(whole.ids) - len(cut.ids)
    with pytest.raises(IndexError):
        encode_pairs(raw, "word1", ["the fox"], Cut(4))


def test_other_types_are_refused() -> None:
    raw = make_raw("word_piece")
    raw.post_processor = processors.TemplateProcessing(
        single="$A", pair="$B:1 </s>:0 $A:0", special_tokens=[("</s>", 2)]
    )
    with pytest.raises(InvalidParameter, match="types that are not 0, then 1"):
        encode_pairs(raw, "the fox", ["jumps"])
    assert encode_pairs(raw, "the fox", ["jumps"], typed=False)[0].second == 0


def test_a_tokenizer_that_tells_no_types(tmp_path: Path) -> None:
    """Its file says what models are given."""
    folder = write_words(tmp_path / "typed", WORDS)
    assert load_tokenizer(folder).encode_pairs("word1", ["word2"])[0].second == 3
    raw = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    plain = save(raw, tmp_path / "plain", bos_token=None, eos_token=None, model_input_names=["input_ids"])
    assert load_tokenizer(plain).encode_pairs("word1", ["word2"])[0].second == 0
