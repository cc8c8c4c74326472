"""Latent attention against the same model with its keys and values made and stored: tokens a second behind a context.

The model has the heads of GLM-4.7-Flash and 1.4 billion parameters, random ones. Beside it stands the model as it is
without absorbed projections: keys and values of all heads are made when a token comes, and each step reads them. Both
are compiled as engines compile models. Steps take turns. Contexts are zeros: speed does not depend on what they say.

    python benchmarks/latent_context.py
"""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import reporting
import torch
from torch import Tensor

from penstock.core.kv import LayerKV, build_kv_spec
from penstock.kernels.batch import StepBatch
from penstock.kernels.cpu.native import native
from penstock.kernels.cpu.operations import kv_layout
from penstock.kernels.dispatch import Dispatcher, Planes
from penstock.kernels.processor import this_processor
from penstock.kernels.program import Program, compile_program
from penstock.kernels.signature import HeadLayout
from penstock.kernels.tape import Tape, Value
from penstock.layers.latent_attention import LatentAttention
from penstock.layers.linear import Linear
from penstock.layers.weights import WeightSpec
from penstock.loading.packing import PackedWeights
from penstock.loading.weights import dummy_weights
from penstock.models.declaration import ModelDeclaration
from penstock.models.registry import declare
from penstock.runtime.storage import planes_in

SHAPE = {
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "mlp_layer_types": ["dense"] * 24,
    "num_attention_heads": 20,
    "max_position_embeddings": 16384,
    "dtype": "bfloat16",
}
BLOCK = 16
DTYPE = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Expanded:
    """The same layer, whose keys and values of all heads are made and stored; a key is as wide as a value here."""

    latent: LatentAttention

    @property
    def heads(self) -> HeadLayout:
        return HeadLayout(self.latent.query_heads, self.latent.query_heads, self.latent.value)

    @property
    def kv(self) -> LayerKV:
        return LayerKV(self.heads.kv_heads, self.heads.head_dim)

    @property
    def output(self) -> Linear:
        return self.latent.output

    @property
    def up(self) -> Linear:
        layer, name = self.latent, f"{self.latent.name}.kv_b_proj"
        return Linear(name, layer.latent, ((name, layer.query_heads * (layer.still + layer.value)),))

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        apart = (self.latent.to_latents, self.latent.to_values)
        return (*(each for each in self.latent.weights if each not in apart), *self.up.weights)

    def record_mixing(self, tape: Tape, x: Value) -> Value:
        layer, heads, turning = self.latent, self.latent.query_heads, self.latent.rope.head_dim
        down = layer.latent + turning
        both = layer.qkv.record(tape, x)
        query = tape.columns(both, 0, both.width - down)
        if layer.query is not None:
            norm, projection = layer.query
            query = projection.record(tape, norm.record(tape, query))
        key = tape.columns(both, both.width - down, down)
        still, turned = tape.columns(query, 0, layer.still, heads), tape.columns(query, layer.still, turning, heads)
        turned = tape.concatenate(turned, tape.columns(key, layer.latent, turning))
        turned = tape.rotary(turned, HeadLayout(heads, 1, turning, latent=True), layer.rope)
        made = self.up.record(tape, layer.norm.record(tape, tape.columns(key, 0, layer.latent)))
        one = tape.columns(turned, heads * turning, turning)
        each = one
        for _ in range(heads - 1):
            each = tape.concatenate(each, one)
        queries = tape.concatenate(still, tape.columns(turned, 0, heads * turning), heads)
        keys = tape.concatenate(tape.columns(made, 0, layer.still, heads), each, heads)
        values = tape.columns(made, layer.still, layer.value, heads)
        fused = tape.concatenate(tape.concatenate(queries, keys), values)
        tape.write_kv(fused, self.heads, layer.layer)
        return tape.attention(fused, self.heads, layer.layer, layer.scale)


class Storage:
    """Keys and values of all layers, zeros, as the kernels lay them out."""

    def __init__(self, layers: tuple[LayerKV, ...], rows: int, context: int) -> None:
        self.spec = build_kv_spec(layers, "bfloat16", BLOCK)
        blocks = rows * -(-context // BLOCK)
        self._memory = torch.zeros((blocks * self.spec.num_tables, self.spec.block_bytes), dtype=torch.uint8)
        self.tables = tuple(
            (torch.arange(blocks, dtype=torch.int32) + table * blocks).view(rows, -1)
            for table in range(self.spec.num_tables)
        )
        self.layout = kv_layout(self.spec, DTYPE)

    def planes(self, layer: int) -> Planes:
        return planes_in(self._memory, self.spec, layer)

    def table_of(self, layer: int) -> int:
        return self.spec.table_of(layer)

    @property
    def nbytes(self) -> int:
        return self._memory.numel()


def batch_of(storage: Storage, rows: int, context: int) -> StepBatch:
    """A token of each row behind `context` - 1 others."""
    last = torch.full((rows,), context - 1)
    ones, contexts = [1] * rows, [context] * rows
    return StepBatch(torch.arange(rows) + 5, last, ones, contexts, rows, torch.arange(rows), storage.tables, BLOCK)


def expanded(declaration: ModelDeclaration) -> ModelDeclaration:
    """The model with keys and values made."""
    blocks = tuple(
        replace(block, attention=Expanded(block.attention))  # type: ignore[arg-type]
        for block in declaration.decoder.blocks
    )
    return replace(declaration, decoder=replace(declaration.decoder, blocks=blocks))


def compiled(declaration: ModelDeclaration, storage: Storage, quantization: str) -> Program:
    """The model with random weights."""
    weights: Mapping[str, object] = dummy_weights(declaration, DTYPE, packing=PackedWeights(quantization, quantization))
    dispatcher = Dispatcher(this_processor().implementations)
    return compile_program(declaration.record(), weights, storage, DTYPE, dispatcher)  # type: ignore[arg-type]


def seconds(program: Program, batch: StepBatch) -> float:
    begun = time.perf_counter()
    logits: Tensor = program.run(batch)
    assert bool(logits.isfinite().all()), "zeros and random weights give numbers"
    return time.perf_counter() - begun


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--context", type=int, default=8192, help="tokens (default 8192)")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2], help="sequences (default 1 2)")
    parser.add_argument("--steps", type=int, default=7, help="timings of each, of which the median counts (default 7)")
    parser.add_argument("--quantization", nargs="+", default=["none", "int4"], help="of weights (default none int4)")
    arguments = parser.parse_args()
    native.set_threads(reporting.cores())
    latent = declare(SHAPE)
    rows: list[list[object]] = []
    for quantization in arguments.quantization:
        for count in arguments.rows:
            found: list[tuple[Program, StepBatch, int]] = []
            for declaration in (latent, expanded(latent)):
                storage = Storage(declaration.kv_layers, count, arguments.context)
                program = compiled(declaration, storage, quantization)
                found.append((program, batch_of(storage, count, arguments.context), storage.nbytes))
            times: list[list[float]] = [[], []]
            for _ in range(arguments.steps + 1):
                for place, (program, batch, _) in enumerate(found):
                    times[place].append(seconds(program, batch))
            ours, theirs = (statistics.median(each[1:]) for each in times)
            kept = [f"{size / (count * arguments.context) / 1024:,.1f}" for *_, size in found]
            speeds = [f"{count / each:.1f}" for each in (ours, theirs)]
            rows.append([quantization, count, *speeds, f"{theirs / ours:.2f}", *kept])
            del found
    header = ("weights", "sequences", "latent, tokens/s", "keys and values made", "ratio", "KiB a token", "made")
    reporting.report(f"A token behind {arguments.context:,} others", header, rows)


if __name__ == "__main__":
    main()
