"""How many rows does an expert need before calibration pays?

Rounds projections of the bundled model by GPTQ, and by AWQ's factors, on few rows of calibration texts, and compares
what they do to outputs of other rows with what rounding to the nearest does: below 1 calibration pays. The least and
the largest such ratio of all projections and widths are shown for each number of rows, counted in inputs.
"""

import reporting
import torch
from torch import Tensor

from penstock.assembly.prepare import prepare
from penstock.compression.calibration import BlockRunner
from penstock.compression.projections import Tensors, Unit, matrices, units
from penstock.compression.scoring import CALIBRATION_SEED, conversations
from penstock.configuration.options import EngineOptions
from penstock.kernels.processor import this_processor
from penstock.loading.weights import load_weights
from penstock.quantization.awq import search_factors
from penstock.quantization.gptq import Hessian, output_error, quantize_gptq
from penstock.quantization.rtn import Grid, quantize_rtn

LENGTH = 512
SHARES = (1 / 32, 1 / 8, 1 / 4, 1 / 2, 1, 2)
WIDTHS = (4, 3)


class Rows:
    """All rows that projections are given, by name."""

    def __init__(self) -> None:
        self.found: dict[str, list[Tensor]] = {}

    def linear(self, name: str, x: Tensor) -> None:
        self.found.setdefault(name, []).append(x.float().clone())

    def experts(self, name: str, x: Tensor, chosen: Tensor) -> None:
        raise TypeError(f"{name} is of experts, which the bundled models do not have")


def hessian_of(rows: Tensor) -> Tensor:
    seen = Hessian(rows.shape[1])
    seen.add(rows)
    return seen.mean()


def ratios(unit: Unit, weight: Tensor, rows: Tensor) -> dict[tuple[str, float], list[float]]:
    """By method and share of the inputs: errors on rows that were not calibrated on, of those to the nearest."""
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))]
    other, some = hessian_of(rows[: len(rows) // 3]), rows[len(rows) // 3 :]
    found: dict[tuple[str, float], list[float]] = {}
    for bits in WIDTHS:
        grid = Grid(bits, 64, searched=True)
        nearest = output_error(weight, quantize_rtn(weight, grid).numbers(), other)
        for share in SHARES:
            count = round(share * unit.inputs)
            if count > len(some):
                continue
            seen = hessian_of(some[:count])
            factors = search_factors(weight[:: -(-len(weight) // 512)], seen.diagonal().sqrt(), seen, grid)
            scaled = quantize_rtn(weight * factors, grid, seen / factors / factors[:, None]).numbers() / factors
            for method, numbers in (("GPTQ", quantize_gptq(weight, seen, grid).numbers()), ("AWQ", scaled)):
                found.setdefault((method, share), []).append(output_error(weight, numbers, other) / nearest)
    return found


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--models", nargs="+", default=["haiku-draft", "haiku"], help="bundled models (default: both)")
    parser.add_argument("--texts", type=int, default=48, help="conversations (default 48)")
    arguments = parser.parse_args()
    found: dict[tuple[str, float], list[float]] = {}
    for name in arguments.models:
        options = EngineOptions.of(model=name, quantization="none", speculative="off")
        prepared = prepare(options, api_beside=False)
        declaration, checkpoint = prepared.declaration, prepared.checkpoint
        vocabulary = declaration.vocab_size
        chosen = conversations(checkpoint.path, vocabulary, LENGTH, arguments.texts, seed=CALIBRATION_SEED)
        texts = [each.ids for each in chosen]
        runner = BlockRunner.for_texts(declaration, this_processor(), LENGTH, torch.float32)
        weights, entries = load_weights(checkpoint, declaration, torch.float32), checkpoint.locate(declaration)
        states = runner.embed(weights, texts)
        for block in declaration.decoder.blocks:
            rows = Rows()
            states = list(runner.run(block, weights, texts, states, rows))
            for spec in matrices(block):
                # The projections that experts have.
                if spec.name.split(".")[-2] not in ("gate_up_proj", "down_proj"):
                    continue
                (unit,) = units(spec)
                weight = Tensors([spec], entries).of(unit)
                for key, each in ratios(unit, weight, torch.cat(rows.found[spec.name])).items():
                    found.setdefault(key, []).extend(each)
    lines = [
        [method, f"{share:g}", len(each), min(each), reporting.median(each), max(each)]
        for (method, share), each in sorted(found.items())
    ]
    reporting.report("Few rows", ["method", "rows for each input", "cases", "least", "median", "largest"], lines)


if __name__ == "__main__":
    main()
