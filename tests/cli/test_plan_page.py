"""The page of a plan: its text here, and itself in a real browser."""

import json
import re
from collections.abc import Iterator
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.cli.plan_page.svg import Scale, horizontal, short
from penstock.core.errors import PenstockError
from support.browser import Browser, browsing

ROOT = Path(__file__).parents[2]
CONFIG = json.loads((ROOT / "benchmarks" / "public_models.json").read_text())["Llama-3.1-70B"]
WHOLE = (
    *("--on", "4xh100", "--dtype", "fp8", "--rate", "100", "--slo", "ttft=1s,tpot=40ms", "--api-price", "0.5,1.0"),
    *("--price", "2.95", "--operations", "5000", "--buy", "30000"),
)
PLOTS = ("roofline", "throughput", "memory", "cost")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as started:
        yield started


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def made(folder: Path, *arguments: str) -> tuple[Path, dict[str, Any]]:
    """A page, and the same plan for programs."""
    page = folder / "plan.html"
    result = CliRunner().invoke(app, ["plan", *arguments, "--html", str(page), "--json", "-"])
    assert result.exit_code == 0, result.output
    return page, json.loads(result.stdout)


class Elements(HTMLParser):
    """What is opened and not closed, and the values of attributes that name other files."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in ("meta", "link", "img", "path", "circle", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "circle", "rect"):
            assert self.open.pop() == tag


@pytest.mark.parametrize(
    "arguments",
    [
        ("haiku", "--on", "l4"),
        ("haiku", "--on", "h100", "--api-price", "0.001,0.001"),
        ("haiku", "--on", "h100", "--output-len", "1", "--input-len", "1", "--slo", "tpot=1ms"),
        ("haiku", "--on", "h100", "--slo", "ttft=1ms", "--rate", "3", "--api-price", "gpt-5-mini"),
        ("haiku", "--on", "8xh100", "--static", "--tensor-parallel-size", "2", "--price", "0", "--api-price", "1,2"),
        ("haiku", "--on", "h100", "--rate", "1000000", "--api-price", "1,2", "--slo", "tpot=9s"),
        ("--model-config", "CONFIG", "--on", "h100"),
        ("--model-config", "CONFIG", *WHOLE),
    ],
)
def test_a_page_is_whole_and_needs_nothing_else(tmp_path: Path, config: str, arguments: tuple[str, ...]) -> None:
    page, _ = made(tmp_path, *(config if argument == "CONFIG" else argument for argument in arguments))
    text = page.read_text()
    elements = Elements()
    elements.feed(text)
    assert elements.open == []
    assert elements.links and all(link.startswith("data:") for link in elements.links)
    assert "<script" not in text and "@import" not in text and "url(" not in text
    assert not re.search(r'="[^"]*\b(nan|inf)\b', text)


def test_what_a_name_says_stays_text(tmp_path: Path) -> None:
    path = tmp_path / "<b>x&y.json"
    path.write_text(json.dumps(CONFIG))
    page, _ = made(tmp_path, "--model-config", str(path), "--on", "h100")
    assert "&lt;b&gt;x&amp;y.json on H100 SXM" in page.read_text() and "<b>x" not in page.read_text()


def test_without_json_the_page_is_all(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    result = CliRunner().invoke(app, ["plan", "haiku", "--on", "h100", "--html", str(page)])
    assert result.exit_code == 0 and result.stdout == "" and page.exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["/nowhere/plan.html"], "--html /nowhere/plan.html: there is no directory /nowhere."),
        (["-"], "--html writes a page to a file; give its name, such as plan.html."),
        (["/tmp"], "--html /tmp is a directory; give the name of a file."),
        (["/tmp/same", "--json", "/tmp/same"], "--html and --json would both write /tmp/same; give two files."),
    ],
)
def test_where_no_page_can_be_written_is_told(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(app, ["plan", "haiku", "--on", "h100", "--html", *arguments])
    assert isinstance(result.exception, PenstockError)
    assert result.exception.message == told


def test_the_plots_have_the_plans_numbers(browser: Browser, tmp_path: Path, config: str) -> None:
    page, plan = made(tmp_path, "--model-config", config, *WHOLE)
    browser.open(page.as_uri())
    assert browser.text("#what") == "config.json on 4 x H100 SXM"
    for plot in PLOTS:
        box = browser.find(f"#{plot}").size
        assert box["width"] > 300 and box["height"] > 150
        # What those hear who do not see.
        assert browser.run("return document.getElementById(arguments[0]).textContent", f"{plot}-title")
    drawn = {plot: browser.run(f"return document.getElementById('{plot}').textContent") for plot in PLOTS}
    assert f"{plan['roofline']['ridge']:,.0f} operations for each byte" in drawn["roofline"]
    for point in plan["roofline"]["points"]:
        assert (
            f"{point['intensity']:,.1f} operations for each byte, {point['reached'] / 1e12:,.1f} of"
            in drawn["roofline"]
        )
    for point in plan["sweep"]:
        told = f"{point['concurrency']:,} at a time: {point['output_tokens_per_second']:,.0f} tokens a second"
        assert told in drawn["throughput"]
    assert "SLO 40 ms" in drawn["throughput"] and f"{plan['knee']:,}, knee" in drawn["throughput"]
    assert f"{plan['memory']['device_weights_bytes'] / 1e9:,.2f} GB" in drawn["memory"]
    volume = plan["money"]["volume"]
    assert f"${volume['first'] * volume['api_request']:,.0f} a month" in drawn["cost"]
    assert "this rate" in drawn["cost"]
    # The decisions and the intervals can be read.
    for decision in plan["money"]["decisions"]:
        assert decision["answer"] in browser.text(".decisions")
    assert f"{plan['estimate']['ttft_ms']['high']:,.1f}" in browser.text("table")
    for note in plan["notes"]:
        assert note in browser.text(".notes")
    assert browser.complaints() == [] and all(url.startswith(("file:", "data:")) for url in browser.asked())


def test_where_things_are_drawn(browser: Browser, tmp_path: Path, config: str) -> None:
    page, plan = made(tmp_path, "--model-config", config, *WHOLE)
    browser.open(page.as_uri())
    middles = """return [...document.querySelectorAll(arguments[0])].map((dot) => {
        const box = dot.getBoundingClientRect();
        return [box.left + box.width / 2, box.top + box.height / 2];
    })"""
    # More at a time is further right and higher up, and beyond the line where the service level is missed.
    dots = browser.run(middles, "#throughput .dot")
    assert len(dots) == len(plan["sweep"])
    assert all(after[0] > before[0] and after[1] < before[1] for before, after in zip(dots, dots[1:], strict=False))
    ((limit, _),) = browser.run(middles, "#throughput .limit")
    assert [x <= limit for x, _ in dots] == [point["within"] for point in plan["sweep"]]
    assert len(browser.all("#throughput .dot.missed")) == sum(not point["within"] for point in plan["sweep"])
    # Bars of memory are as wide as what they stand for.
    widths = browser.run(
        "return [...document.querySelectorAll('#memory .part')].map((part) => part.width.baseVal.value)"
    )
    memory = plan["memory"]
    assert widths[0] / widths[6] == pytest.approx(memory["device_weights_bytes"] / memory["cache_bytes"], rel=0.01)
    # The crossing lies on the line of the API.
    ((x, y),) = browser.run(middles, "#cost .crossing")
    box = browser.run(
        "const b = document.querySelector('#cost .other-series').getBoundingClientRect(); "
        "return [b.left, b.bottom, b.width, b.height]"
    )
    assert (x - box[0]) / box[2] == pytest.approx((box[1] - y) / box[3], abs=0.02)


@pytest.mark.parametrize(
    "arguments",
    [
        WHOLE,
        (
            "--on",
            "h100",
            "--dtype",
            "fp8",
            "--output-len",
            "1",
            "--input-len",
            "9",
            "--price",
            "0",
            "--api-price",
            "1,2",
        ),
        ("--on", "8xb200", "--dtype", "fp8", "--slo", "tpot=4ms", "--api-price", "claude-opus-5-5", "--rate", "0.001"),
        ("--on", "8xb200", "--dtype", "fp8", "--slo", "tpot=9s", "--api-price", "0.001,0.001", "--rate", "5000"),
    ],
)
def test_words_stay_within_their_drawings(
    browser: Browser, tmp_path: Path, config: str, arguments: tuple[str, ...]
) -> None:
    page, _ = made(tmp_path, "--model-config", config, *arguments)
    browser.open(page.as_uri())
    beyond = """return [...document.querySelectorAll(".plot text")].filter((text) => {
        const [inner, outer] = [text, text.ownerSVGElement].map((each) => each.getBoundingClientRect());
        return inner.left < outer.left - 1 || inner.right > outer.right + 1
            || inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1;
    }).map((text) => text.textContent)"""
    assert browser.all(".plot text") and browser.run(beyond) == []


def test_it_can_be_read_on_a_phone_and_in_the_dark(browser: Browser, tmp_path: Path, config: str) -> None:
    page, _ = made(tmp_path, "--model-config", config, *WHOLE)
    browser.open(page.as_uri())
    colour = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    light = [browser.run(colour, "body", "backgroundColor"), browser.run(colour, "#cost .tick", "fill")]
    browser.look_at(390, 844, dark=True)
    dark = [browser.run(colour, "body", "backgroundColor"), browser.run(colour, "#cost .tick", "fill")]
    assert all(before != after for before, after in zip(light, dark, strict=True))
    assert browser.run("return document.documentElement.scrollWidth") == 390
    for plot in PLOTS:
        assert browser.find(f"#{plot}").size["width"] > 280
    # Words in plots are at least eight pixels high.
    heights = browser.run("return [...document.querySelectorAll('.plot text')].map((t) => t.getScreenCTM().d * 11.5)")
    assert min(abs(height) for height in heights if height) > 8 and browser.complaints() == []


def test_ticks_are_round_and_within() -> None:
    assert horizontal(0, 340e6).ticks() == [0, 100e6, 200e6, 300e6]
    assert horizontal(0.8, 5900, logarithmic=True).ticks() == pytest.approx([1, 10, 100, 1000])
    assert horizontal(7, 240, logarithmic=True).ticks() == pytest.approx([10, 20, 50, 100, 200])
    assert len(horizontal(1e-3, 1e12, logarithmic=True).ticks()) <= 6
    assert horizontal(3, 4, logarithmic=True).ticks() == [3]
    assert Scale(0, 10, 100, 0).at(2.5) == 75 and Scale(0, 10, 100, 0).at(99) == 0
    assert [short(value) for value in (0.5, 20, 3000, 1.5e6, 2e9)] == ["0.5", "20", "3k", "1.5M", "2B"]


def test_changes_and_layouts_are_tables(tmp_path: Path, config: str) -> None:
    page, plan = made(tmp_path, "--model-config", config, *WHOLE)
    text = page.read_text()
    assert len(plan["levers"]) >= 4 and all(escape(lever["what"]) in text for lever in plan["levers"])
    assert len(plan["layouts"]) == 7 and all(escape(layout["why"]) in text for layout in plan["layouts"])
