"""How long it takes from launching `penstock serve` to the first token, the model's files being in the page cache.

The client polls for readiness and sends one request with 16 prompt tokens as soon as it is there. Each run is a new
process; the model's files are read once beforehand.
"""

import asyncio
import time
from pathlib import Path

import reporting
from http_client import complete
from serving import serving

CHUNK = 1 << 24


def read_files(directory: Path) -> None:
    """Bring the files into the page cache."""
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(CHUNK):
                    pass


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", help="a directory in Hugging Face's layout, or a hub name")
    parser.add_argument("--runs", type=int, default=3, help="how many launches (default 3)")
    parser.add_argument("--option", action="append", default=[], help="option for `penstock serve`, may be repeated")
    arguments = parser.parse_args()

    read_files(Path(arguments.model))
    rows = []
    for run in range(arguments.runs):
        with serving(arguments.model, arguments.option) as server:
            server.wait_until_ready()
            ready = time.monotonic() - server.launched
            body = {"prompt": list(range(10, 26)), "max_tokens": 1, "temperature": 0, "ignore_eos": True}
            timing = asyncio.run(complete(server.port, body, time.monotonic()))
            if timing.error:
                raise SystemExit(f"The request failed: {timing.error}")
        rows.append((run + 1, ready, timing.chunks[0] - server.launched))
    rows.append(("median", *(reporting.median([row[column] for row in rows]) for column in (1, 2))))
    reporting.report(f"Start-up of {Path(arguments.model).name}", ("run", "ready after s", "first token after s"), rows)


if __name__ == "__main__":
    main()
