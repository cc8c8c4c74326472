"""Encoder-decoders as programs have saved them: other names, copies of what is shared, heads of their own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.models.registry import declare
from support.sources import make_sourced

SIZES = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 16,
    "init_std": 0.3,
}
T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
SOURCE, OUTPUT = [5, 9, 33, 2], [2, 7, 40]
Tensors = dict[str, Tensor]


def saved(model: Any, folder: Path, change: Callable[[Tensors], Tensors] = lambda tensors: tensors) -> Tensor:
    """Transformers' logits of a model, whose files are then changed."""
    model.eval().save_pretrained(folder)
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(change(tensors), folder / "model.safetensors")
    with torch.inference_mode():
        found = model(input_ids=torch.tensor([SOURCE]), decoder_input_ids=torch.tensor([OUTPUT]))
    return found.logits[0]  # type: ignore[no-any-return]


def logits(folder: Path) -> Tensor:
    model = make_sourced(folder, rows=1, tokens=16)
    model.encode({0: SOURCE})
    return model.step({0: OUTPUT})[0]


def bart() -> Any:
    torch.manual_seed(0)
    return transformers.BartForConditionalGeneration(transformers.BartConfig(**SIZES))


def without_prefix(tensors: Tensors) -> Tensors:
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name != "final_logits_bias"}


def with_copies(tensors: Tensors) -> Tensors:
    shared = tensors["model.shared.weight"]
    copies = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
    return tensors | {name: shared.clone() for name in copies} | {"model.encoder.version": torch.ones(1)}


def under(name: str) -> Callable[[Tensors], Tensors]:
    def change(tensors: Tensors) -> Tensors:
        return {name if each == "model.shared.weight" else each: tensor for each, tensor in tensors.items()}

    return change


@pytest.mark.parametrize(
    "change",
    [
        without_prefix,
        with_copies,
        under("model.encoder.embed_tokens.weight"),
        under("model.decoder.embed_tokens.weight"),
        under("lm_head.weight"),
        lambda tensors: without_prefix(under("model.decoder.embed_tokens.weight")(tensors)),
    ],
    ids=["inner part", "copies", "the encoder's", "the decoder's", "the head's", "inner part, the decoder's"],
)
def test_what_is_shared_has_many_names(tmp_path: Path, change: Callable[[Tensors], Tensors]) -> None:
    right = saved(bart(), tmp_path, change)
    torch.testing.assert_close(logits(tmp_path), right, atol=1e-4, rtol=1e-4)


def test_positions_that_are_computed_may_be_in_the_files(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transformers.MarianMTModel(transformers.MarianConfig(**SIZES, decoder_vocab_size=64, pad_token_id=63))
    right = saved(
        model, tmp_path, lambda tensors: tensors | {"model.encoder.embed_positions.weight": torch.ones(16, 32)}
    )
    torch.testing.assert_close(logits(tmp_path), right, atol=1e-4, rtol=1e-4)


def test_a_table_of_distances_to_a_source_is_not_used(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5))
    name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    right = saved(model, tmp_path, lambda tensors: tensors | {name: torch.ones(32, 2)})
    torch.testing.assert_close(logits(tmp_path), right, atol=1e-4, rtol=1e-4)


def test_a_head_of_its_own_is_used(tmp_path: Path) -> None:
    """As FLAN-T5 has it, whose states are not scaled before that."""
    torch.manual_seed(0)
    config = transformers.T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    model = transformers.T5ForConditionalGeneration(config)
    head = torch.randn(64, 32)
    saved(model, tmp_path, lambda tensors: tensors | {"lm_head.weight": head})
    states = transformers.T5Model(config)
    states.load_state_dict(model.state_dict(), strict=False)
    with torch.inference_mode():
        found = states.eval()(input_ids=torch.tensor([SOURCE]), decoder_input_ids=torch.tensor([OUTPUT]))
    said = json.loads((tmp_path / "config.json").read_text())
    # What transformers 5 writes, and what older ones have written.
    for config_said in (said, {**said, "tie_word_embeddings": False, "scale_decoder_outputs": None}):
        (tmp_path / "config.json").write_text(json.dumps(config_said))
        right = found.last_hidden_state[0] @ head.T
        torch.testing.assert_close(logits(tmp_path), right, atol=1e-4, rtol=1e-4)


def test_zeros_are_not_added_to_logits(tmp_path: Path) -> None:
    saved(bart(), tmp_path)
    declaration = model_of(open_checkpoint(tmp_path))
    assert declaration.decoder.logit_bias is None and declaration.max_source == 16
    assert [kv.source for kv in declaration.kv_layers] == [False, True]


@pytest.mark.parametrize(
    "architecture, change, says",
    [
        (
            "BartForConditionalGeneration",
            {"encoder_attention_heads": 3},
            "even multiple of encoder_attention_heads = 3",
        ),
        ("BartForConditionalGeneration", {"activation_function": "tanh"}, "activation_function = 'tanh'"),
        ("BartForConditionalGeneration", {"d_model": 0}, "d_model"),
        ("BartForConditionalGeneration", {"sparse_attention": True}, "sparse_attention = True"),
        ("MarianMTModel", {"decoder_vocab_size": 40}, "share_encoder_decoder_embeddings"),
        ("M2M100ForConditionalGeneration", {"pad_token_id": -1}, "pad_token_id"),
        ("T5ForConditionalGeneration", {"feed_forward_proj": "gated-silu"}, "feed_forward_proj = 'gated-silu'"),
        ("T5ForConditionalGeneration", {"relative_attention_num_buckets": 0}, "relative_attention_num_buckets"),
        ("T5ForConditionalGeneration", {"relative_attention_num_buckets": 2}, "relative_attention_num_buckets"),
        ("T5ForConditionalGeneration", {"relative_attention_max_distance": 4}, "relative_attention_max_distance"),
        ("MT5ForConditionalGeneration", {"num_heads": None}, "num_heads"),
    ],
)
def test_what_makes_no_sense_is_refused(architecture: str, change: dict[str, Any], says: str) -> None:
    sizes = T5 if "T5" in architecture else SIZES
    with pytest.raises((ModelFileError, UnsupportedModel), match=says):
        declare({**sizes, "architectures": [architecture], **change})
