"""What the machine itself reaches: memory reads, and arithmetic in registers. Needs Penstock's environment.

Prints one line of JSON: GB/s of memory reads and GOP/s by type, on all threads.
"""

import argparse
import json

from workload import usable_cores

from penstock.kernels.cpu.native import OBSTACLE, native
from penstock.runtime.ceilings import measure_ceilings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(usable_cores()), help="of the computation (default: all)")
    arguments = parser.parse_args()
    if OBSTACLE is not None:
        raise SystemExit(f"There is nothing to measure with: {OBSTACLE}.")
    native.set_threads(arguments.threads)
    ceilings = measure_ceilings()
    figures = {"read": ceilings.read, "arithmetic": ceilings.arithmetic, "kernels": native.instruction_set()}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
