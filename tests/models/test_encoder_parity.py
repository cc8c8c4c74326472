"""Hidden states of encoders equal transformers', whatever is in the batch; and every feature matters."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from penstock.kernels.batch import StepBatch
from penstock.kernels.dispatch import Dispatcher, Implementation
from penstock.kernels.processor import this_processor
from penstock.kernels.program import Program, compile_program
from penstock.kernels.reference import REFERENCE
from penstock.layers.attention import SelfAttention
from penstock.layers.decoder import DecoderBlock
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.packing import IN_OWN_PRECISION, Packing
from penstock.loading.weights import load_weights
from penstock.models.declaration import ModelDeclaration
from support.plain import plain
from support.stepping import ShuffledStorage

VOCABULARY = 160
LENGTHS = (33, 1, 2, 17, 64, 5, 16)
TOLERANCE = 3e-5
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 80,
    # So large that attention is peaked, and nothing hides.
    "initializer_range": 0.3,
}
FAMILIES: Mapping[str, Callable[[], Any]] = {
    "bert": lambda: transformers.BertConfig(**SMALL),
    "bert, tanh": lambda: transformers.BertConfig(**SMALL, hidden_act="gelu_new"),
    "roberta": lambda: transformers.RobertaConfig(**SMALL, type_vocab_size=1, pad_token_id=1),
    "xlm-roberta": lambda: transformers.XLMRobertaConfig(**SMALL, type_vocab_size=1, pad_token_id=1),
    "camembert": lambda: transformers.CamembertConfig(**SMALL, type_vocab_size=1, pad_token_id=1),
    "distilbert": lambda: transformers.DistilBertConfig(
        vocab_size=VOCABULARY, dim=64, hidden_dim=96, n_layers=3, n_heads=4, max_position_embeddings=80
    ),
    "embeddinggemma": lambda: transformers.Gemma3TextConfig(
        **{**SMALL, "initializer_range": 0.1},
        num_key_value_heads=2,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=14,
        sliding_window_pattern=2,
        use_bidirectional_attention=True,
    ),
    "mpnet": lambda: transformers.MPNetConfig(**SMALL),
    "nomic": lambda: transformers.NomicBertConfig(**SMALL, head_dim=16),
    "gte": lambda: transformers.GteConfig(**SMALL),
    "modernbert": lambda: transformers.ModernBertConfig(
        **SMALL, local_attention=16, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2, pad_token_id=3
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """A checkpoint with random weights of each family, and transformers' model of it."""
    found = {}
    for number, (family, config) in enumerate(FAMILIES.items()):
        torch.manual_seed(number)
        model = transformers.AutoModel.from_config(config()).eval()
        for name, parameter in model.named_parameters():
            # Biases begin at 0 and norms at 1, where they would not be seen.
            if parameter.ndim == 1:
                torch.nn.init.normal_(parameter, 1.0 if name.endswith("weight") else 0.0, 0.3)
        folder = tmp_path_factory.mktemp("encoders") / family
        model.save_pretrained(folder)
        found[family] = folder, model
    return found


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(4, VOCABULARY, (length,), generator=generator).tolist() for length in LENGTHS]


def program_of(
    folder: Path,
    declaration: ModelDeclaration | None = None,
    implementations: tuple[Implementation, ...] = this_processor().implementations,
    packing: Packing = IN_OWN_PRECISION,
) -> Program:
    checkpoint = open_checkpoint(folder)
    declaration = declaration or model_of(checkpoint)
    weights = load_weights(checkpoint, declaration, torch.float32, packing=packing)
    storage = ShuffledStorage([], torch.float32, 1, 1)
    return compile_program(declaration.record(), weights, storage, torch.float32, Dispatcher(implementations))


def states(program: Program, texts: list[list[int]], types: list[list[int]] | None = None) -> list[Tensor]:
    """The hidden states of each text, all computed in one step."""
    lengths = [len(text) for text in texts]
    batch = StepBatch(
        token_ids=torch.tensor([token for text in texts for token in text]),
        positions=torch.cat([torch.arange(length) for length in lengths]),
        query_lengths=lengths,
        context_lengths=lengths,
        num_decodes=0,
        logit_rows=torch.arange(sum(lengths)),
        block_tables=(),
        block_size=16,
        types=None if types is None else torch.tensor([each for text in types for each in text]),
    )
    return list(program.run(batch).split(lengths))


@torch.inference_mode()
def expected(model: Any, text: list[int], **others: Tensor) -> Tensor:
    return model(torch.tensor([text]), **others).last_hidden_state[0]  # type: ignore[no-any-return]


def difference(found: list[Tensor], right: list[Tensor]) -> float:
    """The largest, as a part of the largest number of a text."""
    return max(float((mine - other).abs().max() / other.abs().max()) for mine, other in zip(found, right, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_states_equal_transformers(models: dict[str, tuple[Path, Any]], family: str) -> None:
    folder, model = models[family]
    right = [expected(model, text) for text in prompts()]
    assert difference(states(program_of(folder), prompts()), right) <= TOLERANCE
    plainly = states(program_of(folder, implementations=REFERENCE, packing=plain), prompts())
    assert difference(plainly, right) <= TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_alone_has_the_same_bits(models: dict[str, tuple[Path, Any]], family: str) -> None:
    program = program_of(models[family][0])
    assert program.row_function
    for text, together in zip(prompts(), states(program, prompts()), strict=True):
        assert torch.equal(states(program, [text])[0], together)


@pytest.mark.parametrize(
    "family, kind",
    [
        ("bert", transformers.BertForMaskedLM),
        ("roberta", transformers.RobertaForMaskedLM),
        ("xlm-roberta", transformers.XLMRobertaForMaskedLM),
        ("camembert", transformers.CamembertForMaskedLM),
        ("distilbert", transformers.DistilBertForMaskedLM),
        ("mpnet", transformers.MPNetForMaskedLM),
        ("modernbert", transformers.ModernBertForMaskedLM),
    ],
)
def test_what_was_saved_with_a_head_is_read_without(tmp_path: Path, family: str, kind: Any) -> None:
    torch.manual_seed(7)
    model = kind(FAMILIES[family]()).eval()
    model.save_pretrained(tmp_path)
    right = [expected(model.base_model, text) for text in prompts()]
    assert difference(states(program_of(tmp_path), prompts()), right) <= TOLERANCE


def test_types_of_tokens_equal_transformers(models: dict[str, tuple[Path, Any]]) -> None:
    folder, model = models["bert"]
    types = [[int(place >= len(text) // 3) for place in range(len(text))] for text in prompts()]
    right = [
        expected(model, text, token_type_ids=torch.tensor([each])) for text, each in zip(prompts(), types, strict=True)
    ]
    program = program_of(folder)
    assert difference(states(program, prompts(), types), right) <= TOLERANCE
    assert difference(states(program, prompts()), right) > 0.01


def _blocks(change: Callable[[DecoderBlock], DecoderBlock]) -> Callable[[ModelDeclaration], ModelDeclaration]:
    def changed(declaration: ModelDeclaration) -> ModelDeclaration:
        blocks = tuple(map(change, declaration.decoder.blocks))
        return replace(declaration, decoder=replace(declaration.decoder, blocks=blocks))

    return changed


def _decoder(**fields: Any) -> Callable[[ModelDeclaration], ModelDeclaration]:
    return lambda declaration: replace(declaration, decoder=replace(declaration.decoder, **fields))


def _attention(**fields: Any) -> Callable[[ModelDeclaration], ModelDeclaration]:
    def change(block: DecoderBlock) -> DecoderBlock:
        assert isinstance(block.attention, SelfAttention)
        return replace(block, attention=replace(block.attention, **fields))

    return _blocks(change)


def _mlp(**fields: Any) -> Callable[[ModelDeclaration], ModelDeclaration]:
    return _blocks(lambda block: replace(block, mlp=replace(block.mlp, **fields)))


MUTATIONS: Mapping[str, Callable[[ModelDeclaration], ModelDeclaration]] = {
    "no types": _decoder(types=None),
    "no positions": _decoder(positions=None),
    "no norm of embeddings": _decoder(embedding_norm=None),
    "a window": _attention(window=5),
    "no biases of queries": _attention(qkv_bias=False),
    "no bias behind attention": _attention(output_bias=False),
    "another scale": _attention(scale=0.2),
    "another activation": _mlp(activation="silu"),
    "no biases of the MLP": _mlp(biased=False),
}


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_every_feature_matters(models: dict[str, tuple[Path, Any]], family: str, mutation: str) -> None:
    """A feature that is off must show in the states: else the parity tests would not see it break."""
    folder, model = models[family]
    changed = replace(MUTATIONS[mutation](model_of(open_checkpoint(folder))), unused_tensors=("*",))
    right = [expected(model, text) for text in prompts()]
    assert difference(states(program_of(folder, changed), prompts()), right) > 100 * TOLERANCE


def test_positions_of_roberta_begin_behind_padding(models: dict[str, tuple[Path, Any]]) -> None:
    folder, model = models["roberta"]
    config = json.loads((folder / "config.json").read_text())
    declaration = model_of(open_checkpoint(folder))
    assert declaration.max_position_embeddings == config["max_position_embeddings"] - 2
    positions = declaration.decoder.positions
    assert positions is not None and positions.skipped == 2
    moved = _decoder(positions=replace(positions, skipped=1, count=positions.count + 1))(declaration)
    right = [expected(model, text) for text in prompts()]
    assert difference(states(program_of(folder, moved), prompts()), right) > 100 * TOLERANCE
