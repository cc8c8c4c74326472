"""A small random model that reads words of two languages and writes words: mBART with a tokenizer of its own."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from support.tokenizers_made import save

WORDS = [f"word{number}" for number in range(60)]
LANGUAGES = ("en_XX", "de_DE", "fr_XX")
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
END = 2
ENGLISH, GERMAN, FRENCH = (len(_SPECIAL) + len(WORDS) + index for index in range(3))


def write_translator(folder: Path, **generation: Any) -> Path:
    """The files of such a model, whose outputs are German unless a request says otherwise; it has no end."""
    torch.manual_seed(3)
    config = transformers.MBartConfig(
        vocab_size=FRENCH + 1,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=128,
        init_std=0.4,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=END,
        decoder_start_token_id=END,
        forced_eos_token_id=None,
    )
    model = transformers.MBartForConditionalGeneration(config).eval()
    # Few outputs end, so that they are of many words.
    model.final_logits_bias[0, END] = -6.0
    model.save_pretrained(folder)
    settings = {"decoder_start_token_id": END, "forced_bos_token_id": GERMAN, "eos_token_id": END, "pad_token_id": 1}
    (folder / "generation_config.json").write_text(json.dumps({**settings, **generation}))
    _write_tokenizer(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:
    """As mBART-50's: the source's language before it, and its end behind."""
    vocabulary = {token: index for index, token in enumerate((*_SPECIAL, *WORDS, *LANGUAGES))}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.add_special_tokens([*_SPECIAL, *LANGUAGES])
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.decoder = decoders.WordPiece()
    raw.post_processor = processors.TemplateProcessing(
        single="en_XX $A </s>", special_tokens=[("en_XX", ENGLISH), ("</s>", END)]
    )
    save(raw, folder, unk_token="<unk>", pad_token="<pad>")


@torch.inference_mode()
def translated(folder: Path, source: list[int], language: int, tokens: int, **options: Any) -> list[list[int]]:
    """What transformers makes of a source: `tokens` tokens behind that of the language, or fewer, for each output."""
    model = transformers.MBartForConditionalGeneration.from_pretrained(folder).eval()
    asked = {"do_sample": False, "num_beams": 1, **options}
    made = model.generate(
        torch.tensor([source]), max_new_tokens=1 + tokens, forced_bos_token_id=language, pad_token_id=1, **asked
    )
    return [[token for token in output[2:].tolist() if token != 1] for output in made]
