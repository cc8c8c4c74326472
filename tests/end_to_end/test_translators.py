"""Encoder-decoders of other families from their files to texts, with the tokenizers that they come with."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from penstock import LLM, SamplingParams
from support.sentence_pieces import CONTROL, UNKNOWN, file_of

SPACE = "\u2581"
WORDS = [f"{SPACE}w{number}" for number in range(40)]
PIECES = [("</s>", 0.0, CONTROL), ("<unk>", 0.0, UNKNOWN), *((word, -1.0, 1) for word in WORDS)]
TEXTS = ["w3", "w1 w2  w3 w4", "w39 w38 w0 unheard w7 w7 w7"]


def write_marian(folder: Path) -> Any:
    """Padding begins outputs, and never comes in them."""
    names = ["</s>", "<unk>", *WORDS, "<pad>"]
    padding = len(names) - 1
    config = transformers.MarianConfig(
        vocab_size=len(names),
        decoder_vocab_size=len(names),
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=64,
        init_std=0.4,
        scale_embedding=True,
        activation_function="swish",
        pad_token_id=padding,
        eos_token_id=0,
        decoder_start_token_id=padding,
        forced_eos_token_id=None,
        bad_words_ids=[[padding]],
    )
    model = transformers.MarianMTModel(config).eval()
    # It would come at once.
    model.final_logits_bias[0, padding] = 50.0
    folder.mkdir()
    (folder / "source.spm").write_bytes(file_of(PIECES))
    (folder / "vocab.json").write_text(json.dumps({name: index for index, name in enumerate(names)}))
    return model


def write_t5(folder: Path) -> Any:
    config = transformers.T5Config(
        vocab_size=len(PIECES) + 100,
        d_model=32,
        d_kv=16,
        d_ff=48,
        num_layers=2,
        num_heads=2,
        initializer_factor=2.0,
        pad_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=1,
    )
    folder.mkdir()
    (folder / "spiece.model").write_bytes(file_of(PIECES))
    return transformers.T5ForConditionalGeneration(config).eval()


@pytest.mark.parametrize("write", [write_marian, write_t5], ids=["marian", "t5"])
def test_texts_become_texts_as_with_transformers(tmp_path: Path, write: Any) -> None:
    torch.manual_seed(5)
    folder = tmp_path / "model"
    model = write(folder)
    model.save_pretrained(folder)
    llm = LLM(str(folder), dtype="float32")
    params = SamplingParams(temperature=0.0, max_tokens=24)
    for text, found in zip(TEXTS, llm.generate(TEXTS, params), strict=True):
        with torch.inference_mode():
            [right] = model.generate(
                torch.tensor([found.prompt_token_ids]), max_new_tokens=24, do_sample=False, num_beams=1
            )
        ends = right[1:].tolist()
        expected = ends[: ends.index(0)] if 0 in ends else ends
        assert [token for token in found.token_ids if token != 0] == expected
        words = [WORDS[token - 2].removeprefix(SPACE) for token in expected if 2 <= token < 2 + len(WORDS)]
        assert re.sub(r"<extra_id_\d+>", " ", found.text).split() == words
        # Words and the end, and what is unknown as one.
        assert len(found.prompt_token_ids) >= len(text.split()) + 1
