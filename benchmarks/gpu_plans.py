"""How far `penstock plan` is off for Penstock itself on a GPU: its estimates beside what `gpu_rooflines.py` measured.

The plan stands on public measurements of other engines, and knows nothing of these figures. FILE is what
`gpu_rooflines.py --json` has written.

    python benchmarks/gpu_plans.py --on h200 FILE…
"""

import json
import re
import statistics
from pathlib import Path
from typing import Any

import reporting
from gpu_shapes import config_of

from penstock.planning.calibration import prior_basis
from penstock.planning.deploying import deploy
from penstock.planning.estimates import Workload, estimate
from penstock.planning.hardware import machine_of
from penstock.planning.latency import decode_step

_DECODE = re.compile(r"decode, batch (\d+), context (\d+)")
_PROMPT = re.compile(r"prompt of (\d+)")


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="of figures")
    parser.add_argument("--on", required=True, help="the device, as `penstock plan --on` knows it")
    arguments = parser.parse_args()
    rows, off = [], []
    for file in arguments.files:
        found = json.loads(file.read_text(encoding="utf-8"))
        shape, weights = found["options"]["shape"], found["options"]["quantization"].replace("none", "bfloat16")
        for what, measured, planned in beside(found, shape, weights, arguments.on):
            off.append(planned / measured - 1)
            rows.append([shape, weights, what, f"{measured * 1e3:.2f}", f"{planned * 1e3:.2f}", f"{off[-1]:+.0%}"])
    print(reporting.table(["model", "weights", "", "measured, ms", "planned, ms", "planned / measured - 1"], rows))
    print(f"\nOff by {statistics.median(map(abs, off)):.0%} in the median, by {max(map(abs, off)):.0%} at the most.")


def beside(found: dict[str, Any], shape: str, weights: str, device: str) -> list[tuple[str, float, float]]:
    """Of each figure what it is, the seconds that were measured, and those that are planned."""
    deployment = deploy(config_of(shape), machine_of(device), 1, dtype=weights, kv_cache_dtype="bfloat16")
    efficiency, steps = prior_basis(deployment).efficiency, int(found["options"]["steps"])
    planned = []
    for figure in found["figures"]:
        if decode := _DECODE.fullmatch(figure["what"]):
            batch, context = map(int, decode.groups())
            # In the middle of the tokens that were timed.
            seconds = decode_step(deployment, efficiency, batch, context + 1 + steps / 2).seconds
        else:
            prompt = _PROMPT.fullmatch(figure["what"])
            assert prompt is not None, figure["what"]
            seconds = estimate(deployment, efficiency, Workload(int(prompt[1]), 1)).ttft
        planned.append((figure["what"], figure["seconds"], seconds))
    return planned


if __name__ == "__main__":
    main()
