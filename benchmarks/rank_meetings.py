"""How long ranks take to add up what they have: in memory that they share, and by gloo.

    python benchmarks/rank_meetings.py [--ranks 2] [--width 2048] [--rows 1 8 512] [--rounds 30]

Each rank is a process with one thread. In each round, every size is added up some times in shared memory, then by
gloo (torch.distributed over the loopback interface), which take turns. Told are medians of rounds, as the first rank
sees them.
"""

import os
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable

import reporting
import torch

from penstock.parallel.device_ranks import DeviceRanks
from penstock.parallel.places import create_meeting, create_memory
from penstock.parallel.shared import SharedRanks

# Sums behind one another, whose time is taken together.
TIMES = 20


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=2048, help="numbers of a row (default 2048)")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 512])
    parser.add_argument("--rounds", type=int, default=30)
    # How the others are started: their number and two descriptors.
    parser.add_argument("--as-rank", type=int, nargs=3, help="for this program itself")
    arguments = parser.parse_args()
    if arguments.as_rank is not None:
        measured(*arguments.as_rank, arguments)
        return
    memory, meeting = create_memory(arguments.ranks), create_meeting()
    others = [
        subprocess.Popen(
            [sys.executable, *sys.argv, "--as-rank", str(rank), str(memory), str(meeting)], pass_fds=(memory, meeting)
        )
        for rank in range(1, arguments.ranks)
    ]
    try:
        found = measured(0, memory, meeting, arguments)
    finally:
        os.close(memory)
        os.close(meeting)
        for each in others:
            each.wait()
    rows = [
        [rows, *(1e6 * statistics.median(found[kind, rows]) for kind in ("memory", "gloo"))] for rows in arguments.rows
    ]
    title = f"{arguments.ranks} ranks add up {arguments.width:,} numbers a row, µs"
    reporting.report(title, ["rows", "shared memory", "gloo"], rows)


def measured(rank: int, memory: int, meeting: int, arguments: Namespace) -> dict[tuple[str, int], list[float]]:
    """Seconds of a sum, of each round, by how ranks meet and the number of rows."""
    torch.set_num_threads(1)
    shared = SharedRanks(memory, rank, arguments.ranks)
    gloo = DeviceRanks(meeting, rank, arguments.ranks, torch.device("cpu"))
    gloo.join()
    sums: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"memory": shared.sum, "gloo": gloo.sum}
    found: dict[tuple[str, int], list[float]] = {(kind, rows): [] for kind in sums for rows in arguments.rows}
    for _ in range(arguments.rounds):
        for (kind, rows), seconds in found.items():
            x = torch.ones(rows, arguments.width)
            sums[kind](x)
            begun = time.perf_counter()
            for _ in range(TIMES):
                sums[kind](x)
            seconds.append((time.perf_counter() - begun) / TIMES)
    return found


if __name__ == "__main__":
    main()
