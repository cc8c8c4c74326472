"""Takes the pictures of the pages in docs/page: `PYTHONPATH=tests .venv/bin/python benchmarks/page_screenshots.py`.

Serves the bundled model, puts load on it for a minute, and looks at the page in headless Chromium, which has to be
installed, as has the extra `bench`. Then it does the same with a gateway before two servers, and one that
cannot be reached.
"""

import contextlib
import io
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from serving import HOST
from simulated_fleet import gateway

from support.browser import Browser, browsing
from support.live_server import RunningServer, serving

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "page"
SERVER = ("--threads", "1", "--slo", "ttft=1s,itl=100ms", "--max-num-seqs", "8", "--kv-cache-memory", "16MiB")
SECONDS = 75
LOAD = (
    *("--rate", "4", "--burstiness", "0.4", "--duration", str(SECONDS), "--warmup", "0", "--ignore-eos"),
    *("--input-len", "64-256", "--output-len", "20-120", "--prefix-len", "96", "--prefixes", "4", "--cancel", "0.05"),
)
WIDTH, HEIGHT = 1280, 1060
PHONE = (390, 844)


def main() -> None:
    """Make all pictures anew."""
    FOLDER.mkdir(exist_ok=True)
    with browsing() as browser:
        with serving(None, *SERVER) as server, loaded(server.base):
            take(server, browser)
        fleet(browser)


def fleet(browser: Browser) -> None:
    """The picture of a gateway's page."""
    with contextlib.ExitStack() as stack:
        replicas = [stack.enter_context(serving(None, *SERVER)) for _ in range(2)]
        urls = [*(each.base for each in replicas), "http://127.0.0.1:9"]
        listed = "".join(f'[[replica]]\nurl = "{url}"\n' for url in urls)
        base = f"http://{HOST}:{stack.enter_context(gateway([], listed)).port}"
        stack.enter_context(loaded(base))
        browser.open(base)
        time.sleep(SECONDS - 10)
        browser.look_at(WIDTH, browser.run("return document.documentElement.scrollHeight"))
        in_work(browser)
        save(browser, "fleet")


@contextlib.contextmanager
def loaded(base: str) -> Iterator[None]:
    """Load on a server while the block runs."""
    command = [sys.executable, "-m", "penstock.cli.main", "bench", "serve", base, *LOAD]
    load = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        load.terminate()
        load.wait()


def take(server: RunningServer, browser: Browser) -> None:
    """The pictures, while the server works."""
    browser.open(server.base)
    time.sleep(SECONDS - 10)
    browser.look_at(WIDTH, browser.run("return document.documentElement.scrollHeight"))
    in_work(browser)
    save(browser, "live")
    browser.look_at(*PHONE, dark=True)
    in_work(browser)
    save(browser, "phone")
    browser.open(f"{server.base}/#playground")
    browser.look_at(WIDTH, HEIGHT)
    for number, message in enumerate(("Write a haiku about rain.", "Another one, please."), 1):
        browser.type("#message", f"{message}\n")
        browser.wait_for(f".turn:nth-child({number}) aside .timeline", "deliver")
    time.sleep(1)
    save(browser, "playground")
    browser.click(".turn:first-child .account a")
    browser.wait_for("#detail h2", "chat request")
    time.sleep(1)
    save(browser, "requests")


def in_work(browser: Browser) -> None:
    """Until there is something to be seen."""
    time.sleep(1)
    browser.until(lambda: int(browser.text("#running")) > 2, "batch")


def save(browser: Browser, name: str) -> None:
    """What is seen now, in few bytes: the page has few colours."""
    picture = Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("RGB")
    picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        FOLDER / f"{name}.png", optimize=True
    )


if __name__ == "__main__":
    main()
