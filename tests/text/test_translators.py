"""Tokenizers of files of SentencePiece: Marian's, M2M-100's and T5's."""

import contextlib
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import TokenizerError
from penstock.loading.tokenizers import has_tokenizer, tokenizer_in
from penstock.text.sentence_pieces import read_sentence_pieces
from penstock.text.tokenizer import Tokenizer
from penstock.text.translators import tokenizer_of_pieces
from support.sentence_pieces import CONTROL, UNKNOWN, file_of, message, number

SPACE = "\u2581"
UNIGRAM = (
    *(("</s>", 0.0, CONTROL), ("<unk>", 0.0, UNKNOWN)),
    *(
        (f"{SPACE}a", -1.0, 1),
        ("b", -2.0, 1),
        (f"{SPACE}ab", -4.0, 1),
        ("c", -3.0, 1),
        (SPACE, -5.0, 1),
        ("a", -6.0, 1),
    ),
)
BPE = (
    *(("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)),
    *(
        ("ab", -0.0, 1),
        (f"{SPACE}ab", -1.0, 1),
        ("bc", -2.0, 1),
        (SPACE, -3.0, 1),
        ("a", -4.0, 1),
        ("b", -5.0, 1),
        ("c", -6.0, 1),
    ),
)


def written(folder: Path, name: str, content: bytes, ids: list[str] | None = None, **config: object) -> Tokenizer:
    (folder / name).write_bytes(content)
    if ids is not None:
        (folder / "vocab.json").write_text(json.dumps({text: index for index, text in enumerate(ids)}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert has_tokenizer(folder)
    tokenizer = tokenizer_in(folder, 1000)
    assert tokenizer is not None
    return tokenizer


MARIAN = ["<pad>", f"{SPACE}a", "</s>", "b", "c", SPACE, "a", "<unk>", f"{SPACE}z", ">>fra<<"]


def test_sources_of_marian_have_the_ids_of_its_vocabulary(tmp_path: Path) -> None:
    tokenizer = written(tmp_path, "source.spm", file_of(UNIGRAM), MARIAN)
    # The best way would be a piece that has no id.
    assert tokenizer.encode("ab c") == [1, 3, 5, 4, 2]
    assert tokenizer.encode("  a   a ") == [1, 1, 2]
    assert tokenizer.encode("az") == [1, 7, 2]
    assert tokenizer.encode(">>fra<< a") == [9, 1, 2]
    assert tokenizer.decode([8, 1, 3, 2]) == "z ab"
    assert tokenizer.eos_token_id == 2


def test_pieces_are_chosen_so_that_their_scores_add_up_to_the_most(tmp_path: Path) -> None:
    tokenizer = written(tmp_path, "spiece.model", file_of(UNIGRAM))
    assert tokenizer.encode("ab") == [2, 3, 0]
    dearer = [(text, -2.5 if text == f"{SPACE}ab" else score, kind) for text, score, kind in UNIGRAM]
    assert written(tmp_path, "spiece.model", file_of(dearer)).encode("ab") == [4, 0]


def test_gaps_of_t5_are_behind_its_pieces(tmp_path: Path) -> None:
    tokenizer = written(tmp_path, "spiece.model", file_of(UNIGRAM))
    assert tokenizer.encode("<extra_id_0> a <extra_id_1>") == [107, 2, 106, 0]
    assert tokenizer.vocab_size == 108


def test_pieces_of_m2m_100_are_merged_in_the_order_of_scores(tmp_path: Path) -> None:
    ids = ["<s>", "<pad>", "</s>", "<unk>", *(text for text, _, kind in BPE if kind == 1)]
    languages = ["__en__", "__de__"]
    tokenizer = written(
        tmp_path, "sentencepiece.bpe.model", file_of(BPE, model=2), ids, additional_special_tokens=languages
    )
    assert tokenizer.encode("abc") == [11, 5, 10, 2]
    assert [tokenizer.token(index) for index in (11, 12)] == languages
    assert tokenizer.table.is_special(11) and tokenizer.table.is_special(12)
    (tmp_path / "other").mkdir()
    german = written(
        tmp_path / "other",
        "sentencepiece.bpe.model",
        file_of(BPE, model=2),
        ids,
        additional_special_tokens=languages,
        src_lang="de",
    )
    assert german.encode("c") == [12, 7, 10, 2]


@pytest.mark.parametrize(
    "content, says",
    [
        (b"\x0a\xff", "damaged"),
        (b"", "no pieces"),
        (file_of(UNIGRAM)[:-3], "damaged"),
        (file_of([*UNIGRAM, UNIGRAM[2]]), "one twice"),
        (file_of(UNIGRAM[2:]), "none for what is unknown"),
        (file_of(UNIGRAM, model=3), "not implemented"),
        (file_of(UNIGRAM, prefixed=False), "not implemented"),
        (message(1, number(1, 5)), "damaged"),
        (b"\xff" * 20, "damaged"),
    ],
)
def test_files_that_make_no_sense_are_refused(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "spiece.model").write_bytes(content)
    with pytest.raises(TokenizerError, match=says):
        read_sentence_pieces(tmp_path / "spiece.model")


@pytest.mark.parametrize(
    "name, vocabulary, config, says",
    [
        ("source.spm", ["<pad>", "</s>"], {}, "no token for what is unknown"),
        ("source.spm", ["<unk>", "</s>"], {"separate_vocabs": True}, "separate vocabularies"),
        ("sentencepiece.bpe.model", ["<unk>", "</s>"], {"src_lang": "xx"}, "no token for"),
        ("spiece.model", None, {"tokenizer_class": "PegasusTokenizer"}, "PEGASUS"),
    ],
)
def test_folders_that_make_no_sense_are_refused(
    tmp_path: Path, name: str, vocabulary: list[str] | None, config: dict[str, object], says: str
) -> None:
    with pytest.raises(TokenizerError, match=says):
        written(tmp_path, name, file_of(UNIGRAM), vocabulary, **config)


def test_ids_must_be_from_0_on(tmp_path: Path) -> None:
    (tmp_path / "source.spm").write_bytes(file_of(UNIGRAM))
    for ids in ({"<unk>": 0, "</s>": 2}, {"<unk>": 0, "</s>": "1"}, {"<unk>": 0, "</s>": 0}):
        (tmp_path / "vocab.json").write_text(json.dumps(ids))
        with pytest.raises(TokenizerError, match="each once"):
            tokenizer_in(tmp_path, 1000)


@given(st.data())
@settings(max_examples=300)
def test_a_damaged_file_is_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(file_of(UNIGRAM))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spiece.model"
        path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
        with contextlib.suppress(TokenizerError):
            tokenizer_of_pieces(path.parent).encode("ab c")
