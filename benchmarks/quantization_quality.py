"""What int8 and int4 cost in quality on a model that is trained: the bundled one, unless another is named.

    python benchmarks/quantization_quality.py [MODEL] [--texts N]

The reference is the same model in float32, by torch's reference operations. The texts are the default calibration
set's conversations, which the bundled models were not trained on. Compared are the model's own turns: what a person
says is no model's to foresee, and the bundled ones did not learn it.
"""

import argparse
from collections.abc import Iterator

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from penstock.bundled.corpus.generator import calibration
from penstock.core.config import BLOCK_SIZE, ModelConfig
from penstock.core.kv import build_kv_spec
from penstock.kernels.batch import StepBatch
from penstock.kernels.cpu_torch import IMPLEMENTATIONS
from penstock.kernels.dispatch import Dispatcher, Implementation
from penstock.kernels.program import Program, compile_program
from penstock.kernels.reference import REFERENCE
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.hub import resolve_model
from penstock.loading.packing import Packing, packing_of, plain
from penstock.loading.weights import load_weights
from penstock.models.registry import declare
from penstock.quantization.quality import Comparison, Quality
from penstock.runtime.storage import KVStorage
from penstock.text.chat_template import ChatEncoder, load_chat_template
from penstock.text.tokenizer import find_tokenizer

MODES = (
    ("float32", "none", "none"),
    ("int8", "int8", "int8"),
    ("int4", "int4", "int4"),
    ("int4, int8 head", "int4", "int8"),
)
LONGEST = 1024


class Whole:
    """A model that computes a text at once and gives the logits of all positions."""

    def __init__(self, model: str, packing: Packing | None, implementations: tuple[Implementation, ...]) -> None:
        checkpoint = open_checkpoint(resolve_model(model))
        declaration = declare(checkpoint.config)
        blocks = LONGEST // BLOCK_SIZE + 1
        storage = KVStorage(build_kv_spec(declaration.kv_layers, "float32", BLOCK_SIZE), blocks)
        weights = load_weights(checkpoint, declaration, torch.float32, packing=packing or plain)
        self.groups = len(storage.spec.groups)
        self.program: Program = compile_program(
            declaration.record(), weights, storage, torch.float32, Dispatcher(implementations)
        )

    def logits(self, ids: list[int]) -> Tensor:
        """[positions, vocabulary]."""
        count = len(ids)
        places = torch.arange(count)
        table = torch.arange(-(-count // BLOCK_SIZE), dtype=torch.int32)[None]
        batch = StepBatch(
            token_ids=torch.tensor(ids),
            positions=places,
            query_lengths=[count],
            context_lengths=[count],
            num_decodes=int(count == 1),
            logit_rows=places,
            block_tables=(table,) * self.groups,
            block_size=BLOCK_SIZE,
        )
        return self.program.run(batch).float()


def texts(model: str, count: int) -> Iterator[tuple[list[int], Tensor]]:
    """Token ids of conversations, as the model's chat template writes them; and which of them the model says."""
    directory = resolve_model(model)
    tokenizer = find_tokenizer(directory, declare(open_checkpoint(directory).config).vocab_size)
    if tokenizer is None:
        raise SystemExit(f"{model} has no tokenizer.json, so there is no text for it.")
    encoder = ChatEncoder(tokenizer, load_chat_template(tokenizer))
    for conversation in calibration(count):
        messages, tools = conversation.messages, {"tools": list(conversation.tools) or None}
        ids = encoder.encode(messages, add_generation_prompt=False, variables=tools)[:LONGEST]
        said = torch.zeros(len(ids), dtype=torch.bool)
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                begin = len(encoder.encode(messages[:index], variables=tools))
                end = len(encoder.encode(messages[: index + 1], add_generation_prompt=False, variables=tools))
                said[begin:end] = True
        yield ids, said


def measure(model: str, count: int) -> dict[str, Quality]:
    """Figures by mode."""
    directory = str(resolve_model(model))
    declaration = declare(open_checkpoint(resolve_model(model)).config)
    reference = Whole(model, None, REFERENCE)
    modes = {
        name: Whole(
            model,
            packing_of(ModelConfig(directory, directory, "float32", "auto", body, head), declaration),
            IMPLEMENTATIONS,
        )
        for name, body, head in MODES
    }
    comparisons = {name: Comparison() for name in modes}
    for ids, said in texts(model, count):
        before, following = said.nonzero()[:, 0] - 1, torch.tensor(ids)[said]
        right = reference.logits(ids)[before]
        for name, candidate in modes.items():
            comparisons[name].add(right, candidate.logits(ids)[before], following)
    return {name: comparison.result() for name, comparison in comparisons.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="haiku")
    parser.add_argument("--texts", type=int, default=64)
    options = parser.parse_args()
    found = measure(options.model, options.texts)
    some = next(iter(found.values()))
    table = Table(
        title=f"{options.model}: {some.positions} positions, {some.clear_positions} of them clear; "
        f"perplexity of the reference {some.reference_perplexity:.4f}"
    )
    for heading in ("weights", "KL", "same top", "same top where clear", "perplexity"):
        table.add_column(heading, justify="left" if heading == "weights" else "right")
    for name, quality in found.items():
        shares = (f"{quality.same_top:.2%}", f"{quality.clear_same_top:.2%}")
        table.add_row(name, f"{quality.kl:.6f}", *shares, f"{quality.perplexity:.4f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
