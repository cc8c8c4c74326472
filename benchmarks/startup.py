"""How long it takes from launching `penstock serve` to the first token, at a first start and at later ones.

The client polls for readiness and sends one request with 16 prompt tokens as soon as it is there. Each run is a new
process. The first run finds an empty cache of packed weights and leaves them there, the others map them. The model's
files are read once beforehand, and what was written is still in the page cache; with --cold both are dropped from it
before each run. `--option=--packed-cache=off` measures without that cache.
"""

import asyncio
import os
import tempfile
import time
from pathlib import Path

import reporting
from http_client import complete
from serving import serving

CHUNK = 1 << 24


def read_files(directory: Path) -> None:
    """Bring the files into the page cache."""
    for path in _files(directory):
        with path.open("rb", buffering=0) as file:
            while file.read(CHUNK):
                pass


def drop_files(directory: Path) -> None:
    """Take the files out of the page cache."""
    for path in _files(directory):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.is_file()) if directory.is_dir() else []


def start(model: str, options: list[str]) -> tuple[float, float]:
    """Seconds from the launch until the server is ready, and until the first token."""
    with serving(model, options) as server:
        server.wait_until_ready()
        ready = time.monotonic() - server.launched
        body = {"prompt": list(range(10, 26)), "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        timing = asyncio.run(complete(server.port, body, time.monotonic()))
        if timing.error:
            raise SystemExit(f"The request failed: {timing.error}")
        return ready, timing.chunks[0] - server.launched


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", help="a directory in Hugging Face's layout, or a hub name")
    parser.add_argument("--runs", type=int, default=3, help="how many later launches (default 3)")
    parser.add_argument("--cold", action="store_true", help="read model and packed weights from the disk")
    parser.add_argument("--option", action="append", default=[], help="option for `penstock serve`, may be repeated")
    arguments = parser.parse_args()

    rows: list[tuple[object, ...]] = []
    later = []
    with tempfile.TemporaryDirectory() as cache:
        for run in range(arguments.runs + 1):
            for directory in (Path(arguments.model), Path(cache)):
                drop_files(directory) if arguments.cold else read_files(directory)
            # An option of the user's comes last, and so counts.
            times = start(arguments.model, ["--packed-cache", cache, *arguments.option])
            rows.append((f"later {run}" if run else "first", *times))
            later += [times] if run else []
    rows.append(("later, median", *(reporting.median([times[column] for times in later]) for column in (0, 1))))
    reporting.report(
        f"Start-up of {Path(arguments.model).name}", ("start", "ready after s", "first token after s"), rows
    )


if __name__ == "__main__":
    main()
