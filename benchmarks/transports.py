"""How fast KV blocks come from another process, by each transport of `--kv-transport`, alternating in one run.

A process offers blocks (`--role prefill`), and this one pulls them (`--role decode`), as replicas do: sealed bytes of
each size, found first, then pulled on 4 threads, or on one. Encryption is on neither side. Rounds of all transports
alternate; told are medians of MB/s (10^6 bytes), least and greatest. `nixl` is UCX over TCP, `nixl, any` UCX as it
chooses. Mooncake goes over TCP. `memory` is `--kv-transport tcp` on one machine.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import reporting

from penstock.core.handover import Transport
from penstock.runtime.offer_cells import Cells
from penstock.runtime.offer_server import OfferServer
from penstock.runtime.offers import Offers
from penstock.runtime.partner import Partner
from penstock.runtime.partner_near import NearPartner
from penstock.runtime.partner_tcp import TcpPartner
from penstock.runtime.partner_transfer import TransferPartner
from penstock.runtime.transfers import Transfers

# What each is called, with what moves it, and what UCX may take.
KINDS: dict[str, tuple[Transport, str | None]] = {
    "memory": ("tcp", None),
    "tcp": ("tcp", None),
    "mooncake": ("mooncake", None),
    "nixl": ("nixl", "tcp,self"),
    "nixl, any": ("nixl", None),
}


def parse() -> argparse.Namespace:
    """The command line."""
    parser = reporting.parser(__doc__)
    parser.add_argument("--kib", type=int, nargs="+", default=[512, 1024, 2048, 4096], help="of a block")
    parser.add_argument("--mib", type=int, default=64, help="that are pulled at a time (default 64)")
    parser.add_argument("--rounds", type=int, default=7, help="of all (default 7)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 4], help="that pull (default 1 and 4)")
    parser.add_argument("--offer", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def offer(transport: Transport, size: int, count: int) -> None:
    """Offer that number of blocks until the standard input ends."""
    offers = Offers(Cells(size, size * count))
    found = None if transport == "tcp" else Transfers(transport, offers.cells, "127.0.0.1", serves=True)
    block = os.urandom(size)
    for number in range(count):
        offers.put((number, bytes(32)), block)
    server = OfferServer(offers, "127.0.0.1", 0, lambda: None if found is None else found.reach)
    print(server.address, flush=True)
    sys.stdin.read()


@contextlib.contextmanager
def partner(kind: str, size: int, count: int) -> Iterator[Partner]:
    """One that is connected, for the block."""
    transport, ucx = KINDS[kind]
    if ucx is not None:
        os.environ["UCX_TLS"] = ucx
    command = [sys.executable, __file__, "--offer", transport, f"{size}x{count}"]
    running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert running.stdin is not None and running.stdout is not None
    transfers = None
    try:
        address = running.stdout.readline().strip()
        if kind in ("memory", "tcp"):
            yield NearPartner(address) if kind == "memory" else TcpPartner(address)
            return
        transfers = Transfers(transport, Cells(size, 4 * size), serves=False)
        found = TransferPartner(address, transfers)
        # Else it would come over TCP, which is not what is measured.
        found._far.pull = None  # type: ignore[assignment, method-assign]
        yield found
    finally:
        os.environ.pop("UCX_TLS", None)
        if transfers is not None:
            transfers.close()
        running.stdin.close()
        running.wait()


def rate(partner: Partner, size: int, count: int, threads: int) -> float:
    """MB a second of all blocks."""
    begun = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for value in pool.map(lambda number: partner.pull((number, bytes(32)), size), range(count)):
            if value is None or len(value) != size:
                raise SystemExit("A block is not there.")
    return size * count / (time.perf_counter() - begun) / 1e6


def main() -> None:
    arguments = parse()
    if arguments.offer:
        size, count = map(int, arguments.offer[1].split("x"))
        offer(arguments.offer[0], size, count)
        return
    rows = []
    for kib in arguments.kib:
        size, count = kib << 10, (arguments.mib << 10) // kib
        rates: dict[tuple[str, int], list[float]] = {}
        with contextlib.ExitStack() as stack:
            partners = {kind: stack.enter_context(partner(kind, size, count)) for kind in KINDS}
            for number in range(1 + arguments.rounds):
                for kind, each in partners.items():
                    for threads in arguments.threads:
                        found = rate(each, size, count, threads)
                        # The first round connects.
                        if number:
                            rates.setdefault((kind, threads), []).append(found)
        for kind in KINDS:
            cells = [
                f"{statistics.median(found):,.0f} ({min(found):,.0f} to {max(found):,.0f})"
                for threads in arguments.threads
                for found in [rates[kind, threads]]
            ]
            rows.append([f"{kib:,} KiB", kind, *cells])
    header = [
        "block",
        "transport",
        *(f"MB/s, {threads} thread{'' if threads == 1 else 's'}" for threads in arguments.threads),
    ]
    reporting.report("Transports of KV blocks", header, rows)


if __name__ == "__main__":
    main()
