"""Takes the pictures of the live page in docs/page: `PYTHONPATH=tests .venv/bin/python benchmarks/page_screenshots.py`.

Serves the bundled model, puts load on it for a minute, and looks at the page in headless Chromium, which has to be
installed, as has the extra `bench`.
"""

import io
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image

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
    with serving(None, *SERVER) as server, browsing() as browser:
        command = [sys.executable, "-m", "penstock.cli.main", "bench", "serve", server.base, *LOAD]
        load = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            take(server, browser)
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
