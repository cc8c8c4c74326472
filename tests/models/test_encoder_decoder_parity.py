"""Logits of encoder-decoders equal transformers', whatever is in the batch; and every feature matters."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from torch import Tensor
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

from penstock.kernels.reference import REFERENCE
from penstock.layers.attention import SelfAttention
from penstock.layers.decoder import Decoder, DecoderBlock, Table
from penstock.layers.mlp import GatedMlp, PlainMlp
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.packing import IN_OWN_PRECISION, PackedWeights, Packing
from penstock.models.declaration import ModelDeclaration
from penstock.models.registry import declare
from support.plain import plain
from support.sources import Sourced, make_sourced

VOCABULARY = 160
# (tokens of the source, tokens of the output)
LENGTHS = ((33, 5), (1, 40), (2, 1), (17, 17), (64, 3), (5, 64), (16, 16))
TOLERANCE = 1e-4
BART = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 128,
    "max_position_embeddings": 80,
    # So large that attention is peaked, and nothing hides.
    "init_std": 0.25,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "d_kv": 24,
    "d_ff": 96,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 16,
    "relative_attention_max_distance": 40,
    "initializer_factor": 1.5,
}
FAMILIES: Mapping[str, Callable[[], Any]] = {
    "bart": lambda: transformers.BartConfig(**BART),
    "mbart": lambda: transformers.MBartConfig(**BART, scale_embedding=True),
    "marian": lambda: transformers.MarianConfig(
        **{**BART, "pad_token_id": 159, "decoder_start_token_id": 159, "eos_token_id": 0},
        decoder_vocab_size=VOCABULARY,
        scale_embedding=True,
        activation_function="swish",
    ),
    "marian, apart": lambda: transformers.MarianConfig(
        **BART, decoder_vocab_size=120, share_encoder_decoder_embeddings=False
    ),
    "pegasus": lambda: transformers.PegasusConfig(
        **{**BART, "pad_token_id": 0, "eos_token_id": 1}, scale_embedding=True, activation_function="relu"
    ),
    "m2m-100": lambda: transformers.M2M100Config(**BART),
    "t5": lambda: transformers.T5Config(**T5),
    "flan-t5": lambda: transformers.T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "mt5": lambda: transformers.MT5Config(**T5, feed_forward_proj="gated-gelu", decoder_start_token_id=0),
    "umt5": lambda: transformers.UMT5Config(**T5),
}


class Case(NamedTuple):
    """A checkpoint, its sources and outputs, and transformers' logits of each position of an output."""

    path: Path
    sources: list[list[int]]
    outputs: list[list[int]]
    logits: list[Tensor]


@torch.inference_mode()
def _made(path: Path, config: Any, number: int) -> Case:
    torch.manual_seed(number)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        # Biases begin at 0 and norms at 1, where they would not be seen.
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0 if name.endswith("weight") else 0.0, 0.3)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    model.save_pretrained(path)
    generator = torch.Generator().manual_seed(1)

    def drawn(length: int, end: int) -> list[int]:
        return torch.randint(4, end, (length,), generator=generator).tolist()  # type: ignore[no-any-return]

    ends = VOCABULARY - 1, model.get_output_embeddings().out_features - 1
    sources, outputs = ([drawn(pair[side], ends[side]) for pair in LENGTHS] for side in (0, 1))
    logits = [
        model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([output])).logits[0]
        for source, output in zip(sources, outputs, strict=True)
    ]
    return Case(path, sources, outputs, logits)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("encoder-decoders")
    return {
        family: _made(folder / family.replace(", ", "-"), config(), number)
        for number, (family, config) in enumerate(FAMILIES.items())
    }


def logits_of(model: Sourced, case: Case, chunk: int = 1000) -> list[Tensor]:
    """Of all outputs, computed together, `chunk` tokens of each in a step."""
    model.encode(dict(enumerate(case.sources)))
    found: list[list[Tensor]] = [[] for _ in case.outputs]
    for first in range(0, max(map(len, case.outputs)), chunk):
        added = {row: tokens[first : first + chunk] for row, tokens in enumerate(case.outputs) if first < len(tokens)}
        for row, logits in model.step(added).items():
            found[row].append(logits.float())
    return [torch.cat(parts) for parts in found]


def difference(found: list[Tensor], right: list[Tensor]) -> float:
    """The largest, as a part of the largest logit of an output."""
    return max(float((mine - other).abs().max() / other.abs().max()) for mine, other in zip(found, right, strict=True))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("chunk", [1, 16, 1000])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(cases: dict[str, Case], family: str, chunk: int) -> None:
    case = cases[family]
    assert difference(logits_of(make_sourced(case.path), case, chunk), case.logits) <= TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_reference_kernels_agree_too(cases: dict[str, Case], family: str) -> None:
    case = cases[family]
    model = make_sourced(case.path, implementations=REFERENCE, packing=plain)
    assert difference(logits_of(model, case), case.logits) <= TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_alone_has_the_same_bits(cases: dict[str, Case], family: str) -> None:
    case = cases[family]
    together = make_sourced(case.path)
    assert together.encoder.row_function and together.decoder.row_function
    expected, alone = logits_of(together, case), make_sourced(case.path)
    for row in (0, 3):
        alone.encode({row: case.sources[row]})
        found = [alone.step({row: [token]}, "last")[row] for token in case.outputs[row]]
        assert torch.equal(torch.cat(found), expected[row])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "dtype, packing, nearest",
    [
        (torch.bfloat16, IN_OWN_PRECISION, 0.999),
        (torch.float32, PackedWeights("int8", "int8", tied=True), 0.99),
        (torch.float32, PackedWeights("int4", "int8", tied=True), 0.7),
    ],
    ids=["bfloat16", "int8", "int4"],
)
def test_fewer_bits_are_near(
    cases: dict[str, Case], family: str, dtype: torch.dtype, packing: Packing, nearest: float
) -> None:
    """Of random weights, whose attention is peaked: those of trained models lose far less."""
    case = cases[family]
    model = make_sourced(case.path, dtype=dtype, packing=packing)
    assert model.encoder.row_function and model.decoder.row_function
    for mine, right in zip(logits_of(model, case), case.logits, strict=True):
        assert torch.nn.functional.cosine_similarity(mine.flatten(), right.flatten(), 0) > nearest


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_whose_logits_are_not_wanted_are_left_out(cases: dict[str, Case], family: str) -> None:
    case = cases[family]
    model = make_sourced(case.path)
    model.encode(dict(enumerate(case.sources)))
    for row, logits in model.step(dict(enumerate(case.outputs)), "last").items():
        assert difference([logits], [case.logits[row][-1:]]) <= TOLERANCE


Change = Callable[[ModelDeclaration], ModelDeclaration]


def _stack(change: Callable[[Decoder], Decoder], which: str) -> Change:
    return lambda declaration: replace(declaration, **{which: change(getattr(declaration, which))})


def _blocks(change: Callable[[DecoderBlock], DecoderBlock], which: str = "decoder") -> Change:
    return _stack(lambda stack: replace(stack, blocks=tuple(map(change, stack.blocks))), which)


def _attention(which: str, **fields: Any) -> Change:
    def change(block: DecoderBlock) -> DecoderBlock:
        assert isinstance(block.attention, SelfAttention)
        return replace(block, attention=replace(block.attention, **fields))

    return _blocks(change, which)


def _cross(**fields: Any) -> Change:
    def change(block: DecoderBlock) -> DecoderBlock:
        assert block.cross is not None
        return replace(block, cross=replace(block.cross, **fields))

    return _blocks(change)


def _with_buckets(which: str) -> Change:
    def change(block: DecoderBlock) -> DecoderBlock:
        attention = block.attention
        assert isinstance(attention, SelfAttention)
        if attention.bias is None:
            return block
        return replace(block, attention=replace(attention, bias=replace(attention.bias, farthest=60)))

    return _blocks(change, which)


def _decoder(**fields: Any) -> Change:
    return _stack(lambda stack: replace(stack, **fields), "decoder")


def _encoder(**fields: Any) -> Change:
    return _stack(lambda stack: replace(stack, **fields), "encoder")


def _shifted(which: str) -> Change:
    def change(stack: Decoder) -> Decoder:
        positions = stack.positions
        if positions is None:
            return stack
        if isinstance(positions, Table):
            moved = replace(positions, skipped=positions.skipped - 1, count=positions.count + 1)
            return replace(stack, positions=moved)
        return replace(stack, positions=replace(positions, skipped=positions.skipped + 1))

    return _stack(change, which)


def _otherwise_activated(block: DecoderBlock) -> DecoderBlock:
    mlp = block.mlp
    if isinstance(mlp, PlainMlp):
        return replace(block, mlp=replace(mlp, activation="silu" if mlp.activation == "relu" else "relu"))
    assert isinstance(mlp, GatedMlp)
    return replace(block, mlp=replace(mlp, activation="silu"))


def _without_cross(declaration: ModelDeclaration) -> ModelDeclaration:
    def change(block: DecoderBlock) -> DecoderBlock:
        return replace(block, cross=None)

    return _blocks(change)(declaration)


MUTATIONS: Mapping[str, Change] = {
    "no cross-attention": _without_cross,
    "another scale of cross-attention": _cross(scale=0.1),
    "no biases of cross-attention": _cross(biased=False),
    "no biases of queries": _attention("decoder", qkv_bias=False),
    "no biases of the encoder's queries": _attention("encoder", qkv_bias=False),
    "a window of the encoder": _attention("encoder", window=5),
    "a window of the decoder": _attention("decoder", window=5),
    "other positions of the decoder": _shifted("decoder"),
    "other positions of the encoder": _shifted("encoder"),
    "no biases by distance in the decoder": _attention("decoder", bias=None),
    "no biases by distance in the encoder": _attention("encoder", bias=None),
    "other distances in the decoder": _with_buckets("decoder"),
    "other distances in the encoder": _with_buckets("encoder"),
    "states as they are": _decoder(states_scale=None),
    "no norm of the decoder's embeddings": _decoder(embedding_norm=None),
    "no norm of the encoder's embeddings": _encoder(embedding_norm=None),
    "no norm behind the encoder": _encoder(norm=None),
    "no norm behind the decoder": _decoder(norm=None),
    "no bias of logits": _decoder(logit_bias=None),
    "embeddings as they are": _decoder(embedding_scale=None),
    "the encoder's embeddings as they are": _encoder(embedding_scale=None),
    "another activation": _blocks(_otherwise_activated),
}


def _declared(family: str) -> ModelDeclaration:
    config = FAMILIES[family]()
    architecture = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES[config.model_type]
    return declare({**config.to_dict(), "architectures": [architecture]})


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "family, mutation",
    [
        (family, mutation)
        for family in FAMILIES
        for mutation, change in MUTATIONS.items()
        if change(_declared(family)) != _declared(family)
    ],
)
def test_every_feature_matters(cases: dict[str, Case], family: str, mutation: str) -> None:
    """A feature that is off must show in the logits: else the parity tests would not see it break."""
    case = cases[family]
    changed = MUTATIONS[mutation](model_of(open_checkpoint(case.path)))
    model = make_sourced(case.path, declaration=replace(changed, unused_tensors=("*",)))
    assert difference(logits_of(model, case), case.logits) > 3 * TOLERANCE
