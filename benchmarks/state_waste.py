"""What is lost because layers store different bytes for a token, all of them sharing blocks of one size.

Runs the scheduler and the cache, without a model, over the lengths of a trace, for models with layers of several kinds.
After each step's allocation, the bytes of all slots that sequences hold are compared with those that layers use in
them. Beside it stands what is lost where all layers take as much as the largest, in groups whose size is the
number of layers of the rarest kind.
"""

import argparse
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import reporting
from kv_waste import SAMPLE, Lengths, at_once, read_lengths

from penstock.cache.held import SequenceBlocks
from penstock.cache.manager import KVCache
from penstock.core.config import SchedulerConfig
from penstock.core.kv import KVSpec, LayerState, Plane, Visibility, lay_out
from penstock.core.plan import StepPlan, StepResult
from penstock.scheduler.scheduler import Scheduler
from penstock.simulation.loop import one_token_each, play

BLOCK_SIZE = 16


def attention(heads: int, size: int, window: int | None = None, first: int = 0) -> LayerState:
    """Keys and values in bfloat16."""
    planes = tuple(Plane(name, (heads, size), "bfloat16") for name in ("key", "value"))
    return LayerState(planes, Visibility(first, window))


LATENT = LayerState((Plane("latent", (576,), "bfloat16"),))
RECORD = LayerState(
    (Plane("state", (4, 64, 32), "float32", "sequence"), Plane("tail", (3, 512), "bfloat16", "sequence"))
)
LOCAL, GLOBAL = attention(16, 128, 1024), attention(16, 128)
SHAPES: dict[str, list[LayerState]] = {
    "four kinds: full, window, latent, record": (
        [attention(2, 64)] * 6 + [attention(2, 128, 512, 4)] * 12 + [LATENT] * 4 + [RECORD] * 8
    ),
    "Gemma 3 27B: five windows of 1,024 to one full": ([LOCAL] * 5 + [GLOBAL]) * 10 + [LOCAL] * 2,
    "heads of 256 in windows, of 512 in full layers": ([attention(4, 256, 1024)] * 5 + [attention(2, 512)]) * 5,
}


class WatchedCache(KVCache):
    """Knows what sequences hold in each group."""

    def __init__(self, spec: KVSpec, num_blocks: int) -> None:
        super().__init__(spec, num_blocks, prefix_caching=False)
        self._opened: list[SequenceBlocks] = []

    def open(self, sequence: int, salt: str) -> SequenceBlocks:
        """As every cache."""
        blocks = super().open(sequence, salt)
        self._opened.append(blocks)
        return blocks

    def slots(self) -> list[int]:
        """How many slots are held, by group."""
        return [
            sum(len(blocks.tables[group].held()) for blocks in self._opened) for group in range(len(self.spec.groups))
        ]


def padded_bytes(layers: Sequence[LayerState], spec: KVSpec) -> list[int]:
    """What a slot of each group takes where each layer takes as much as the largest, in groups of one size.

    That size is the number of layers of the rarest kind; the last group of a kind has places without a layer. A record
    takes as many places as it needs.
    """
    largest = max(_bytes(layer) for layer in layers if layer is not RECORD)
    kinds = [Counter(layers[index] for index in group.layers) for group in spec.groups]
    size = min(
        count
        for group, found in zip(spec.groups, kinds, strict=True)
        for count in found.values()
        if group.record_interval is None
    )
    return [
        sum(-(-count // size) * size * -(-_bytes(layer) // largest) * largest for layer, count in found.items())
        for found in kinds
    ]


def _bytes(layer: LayerState) -> int:
    return sum(plane.slot_bytes(BLOCK_SIZE) for plane in layer.planes)


def run(layers: Sequence[LayerState], requests: Sequence[Lengths], memory: int, max_num_seqs: int) -> list[object]:
    """Serve all requests from a pool of so many bytes; what is lost, here and with padding."""
    spec = lay_out(layers, BLOCK_SIZE)
    cache, padded = WatchedCache(spec, memory // spec.block_bytes), padded_bytes(layers, spec)
    longest = max(request.total for request in requests)
    config = SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=2048, max_model_len=longest)
    lost: list[float] = []
    lost_padded: list[float] = []

    def execute(plan: StepPlan) -> StepResult:
        held = cache.slots()
        used = sum(count * group.used_bytes for count, group in zip(held, spec.groups, strict=True))
        taken = sum(count * group.width * spec.block_bytes for count, group in zip(held, spec.groups, strict=True))
        lost.append(1 - used / taken)
        lost_padded.append(1 - used / sum(map(int.__mul__, held, padded)))
        return one_token_each(plan)

    for _ in play(Scheduler(config, cache), at_once(requests), execute):
        pass
    widths = "+".join(str(group.width) for group in spec.groups)
    mean, worst, beside = statistics.fmean(lost), max(lost), statistics.fmean(lost_padded)
    return [f"{spec.block_bytes / 1024:.0f}", widths, f"{mean:.1%}", f"{worst:.1%}", f"{beside:.1%}"]


def main() -> None:
    parser: argparse.ArgumentParser = reporting.parser(__doc__)
    parser.add_argument("--trace", type=Path, default=SAMPLE, help="lengths, as Azure or Mooncake write them")
    parser.add_argument("--requests", type=int, default=100, help="how many of its first requests (default 100)")
    parser.add_argument("--divisor", type=int, default=1, help="what lengths are divided by (default 1)")
    parser.add_argument("--memory", type=int, default=8, help="GiB of the pool (default 8)")
    parser.add_argument("--max-num-seqs", type=int, default=64, help="sequences that run at a time (default 64)")
    arguments = parser.parse_args()
    requests = read_lengths(arguments.trace, arguments.requests, arguments.divisor)
    rows = [
        (name, *run(layers, requests, arguments.memory << 30, arguments.max_num_seqs))
        for name, layers in SHAPES.items()
    ]
    reporting.report(
        f"{len(requests)} requests, pool of {arguments.memory} GiB",
        ("layers", "block, KiB", "blocks of a slot, by group", "lost, mean", "worst step", "lost with padding, mean"),
        rows,
    )


if __name__ == "__main__":
    main()
