"""Takes the picture of a plan's page: `PYTHONPATH=tests .venv/bin/python benchmarks/plan_picture.py`.

It is of Llama-3.1-70B on eight H100 at 20 requests a second, against an API's price, and goes to docs/page/plan.png.
Headless Chromium has to be installed, as has the extra `bench`.
"""

import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from support.browser import browsing

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "page" / "plan.png"
PLAN = (
    *("--on", "8xh100", "--tensor-parallel-size", "4", "--dtype", "fp8", "--rate", "20"),
    *("--slo", "ttft=1s,tpot=40ms", "--api-price", "0.5,1.0", "--operations", "5000", "--buy", "30000"),
)
WIDTH = 1280


def main() -> None:
    """Make the picture anew."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config, page = folder / "Llama-3.1-70B", folder / "plan.html"
        shapes = json.loads((ROOT / "benchmarks" / "public_models.json").read_text())
        config.write_text(json.dumps(shapes[config.name]))
        command = [sys.executable, "-m", "penstock.cli.main", "plan", "--model-config", str(config), *PLAN]
        subprocess.run([*command, "--html", str(page)], check=True)
        with browsing() as browser:
            browser.open(page.as_uri())
            browser.look_at(WIDTH, browser.run("return document.documentElement.scrollHeight"))
            end = browser.run(
                "return document.querySelector('.decisions').closest('section').getBoundingClientRect().top"
            )
            picture = Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("RGB")
    # The page has few colours, and the decisions below can be read in the document.
    picture = picture.crop((0, 0, WIDTH, round(end)))
    picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
