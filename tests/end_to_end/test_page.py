"""The live page of `penstock serve` in a real browser, with the bundled model."""

import contextlib
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browser import Browser, browsing
from support.leaving import sent
from support.live_server import RunningServer, serving
from support.operator import Operator
from support.waiting import PATIENCE, until

KEY = "sk-0123456789abcdef0123456789abcdef"
VIEWS = ("live", "requests", "playground")
# Text that is not on a background of enough contrast, by WCAG 2.1, level AA.
CONTRAST = """
const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
const rgba = (color) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = color;
  canvas.fillRect(0, 0, 1, 1);
  return canvas.getImageData(0, 0, 1, 1).data;
};
const light = (color) => [...rgba(color)].slice(0, 3)
  .map((part) => part / 255)
  .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
  .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
const behind = (element) => {
  for (let each = element; each; each = each.parentElement) {
    const color = getComputedStyle(each).backgroundColor;
    if (rgba(color)[3] === 255) return color;
  }
  return "white";
};
const found = [];
for (const element of document.querySelectorAll("body *")) {
  const says = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!says || !element.checkVisibility() || element.closest("svg, .hidden, .skip")) continue;
  const [one, other] = [light(getComputedStyle(element).color), light(behind(element))];
  const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  if (contrast < 4.5) found.push(`${element.tagName}.${element.className} ${element.textContent}: ${contrast}`);
}
return found;
"""


# A request that is a row of the batch for each of its samples.
SAMPLES = 8
LONG = {"prompt": "an old pond", "max_tokens": 1900, "n": SAMPLES, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as started:
        yield started


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The operator's."""
    return tmp_path_factory.mktemp("admin") / "socket"


@pytest.fixture(scope="module")
def haiku(socket: Path) -> Iterator[RunningServer]:
    options = ("--threads", "1", "--slo", "ttft=900s,itl=900s", "--admin-socket", str(socket))
    with serving(None, *options) as running:
        yield running


def newest(server: RunningServer) -> dict[str, Any]:
    """The request that came last, as its account has it."""
    with urllib.request.urlopen(f"{server.base}/v1/requests?limit=1") as listed:
        found: dict[str, Any] = json.load(listed)["data"][0]
    return found


def test_a_chat_is_streamed_and_explained_beside_its_answer(
    browser: Browser, haiku: RunningServer, socket: Path
) -> None:
    browser.open(f"{haiku.base}/#playground")
    browser.wait_for("#state", "haiku · ready")
    browser.run(
        """
        window.lengths = new Set();
        new MutationObserver(() => window.lengths.add(document.querySelector(".answer-text")?.textContent.length))
          .observe(document.querySelector("#turns"), { subtree: true, childList: true, characterData: true });
        """
    )
    browser.type("#seed", "3")
    operator = Operator(socket)
    with operator.paused():
        browser.type("#message", "Write a haiku about rain.\n")
        haiku.wait_for("penstock_requests_waiting", 1)
        shown = 0
        for _ in range(2):
            operator.step(1)
            longer = f"return Math.max(0, ...window.lengths) > {shown}"
            browser.until(lambda longer=longer: browser.run(longer), "piece of the answer")
            shown = browser.run("return Math.max(0, ...window.lengths)")
    browser.wait_for("aside .timeline", "decode")
    summary = browser.wait_for(".turn:not(.runs) .summary", "tokens/s")
    assert re.fullmatch(r"first token after [\d.]+ m?s · [\d,.]+ tokens/s · \d+ tokens", summary)
    answer = browser.text(".answer-text")
    assert len(answer.splitlines()) == 3
    assert len(answer) > shown, "the answer came at once"
    # The same seed gives the same answer to whoever asks; the conversation goes on with it.
    asked = {"messages": [{"role": "user", "content": "Write a haiku about rain."}], "seed": 3}
    told = haiku.post("/v1/chat/completions", asked)
    assert told["choices"][0]["message"]["content"] == answer  # type: ignore[index]
    browser.type("#message", "Another one, please.\n")
    browser.wait_for(".turn:nth-child(2) aside .timeline", "decode")
    # From the answer to all of its account, which is complete once it has an outcome.
    verdict = browser.until(lambda: newest(haiku)["outcome"] and newest(haiku)["verdict"]["sentence"], "outcome")
    browser.click(".turn:nth-child(2) .account a")
    browser.wait_for("#detail .verdict", verdict)
    assert "prefix cache" in browser.text("#detail .facts")
    assert browser.complaints() == []


def test_recent_requests_lead_to_their_accounts(browser: Browser, haiku: RunningServer) -> None:
    haiku.post("/v1/completions", {"prompt": "an old pond", "max_tokens": 5})
    browser.open(f"{haiku.base}/#requests")
    browser.wait_for("#request-rows tr:first-child", "completions completed")
    assert "+ 5" in browser.text("#request-rows tr:first-child")
    browser.click("#request-rows tr:first-child a")
    browser.wait_for("#detail h2", "completions request")
    request = newest(haiku)
    assert browser.text("#detail .id") == request["id"]
    assert browser.text("#detail .verdict") == request["verdict"]["sentence"]
    assert browser.run("return location.hash") == f"#requests/{request['id']}"
    assert all(name in browser.text("#detail .timeline") for name in ("receive", "prefill", "chunk", "decode"))
    for unknown in ("%", "req_none", "%3Cb%3E"):
        browser.run("location.hash = `#requests/${arguments[0]}`", unknown)
        browser.wait_for("#detail", f"No request '{unknown.replace('%3Cb%3E', '<b>')}'")


def test_figures_change_as_the_server_works(browser: Browser, haiku: RunningServer, socket: Path) -> None:
    browser.open(haiku.base)
    browser.wait_for("#state", "ready")
    haiku.post("/v1/completions", {"prompt": "an old pond", "max_tokens": 5})
    browser.wait_for("#attainment", "100%")
    browser.wait_for("#latency", "≤ 900 s")
    operator = Operator(socket)
    with operator.paused(), contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(sent(haiku.base, "/v1/completions", LONG))
        operator.step_until(lambda: haiku.metric("penstock_requests_running") == 3 * SAMPLES)
        browser.wait_for("#running", str(3 * SAMPLES))

        def computes() -> bool:
            operator.step(1)
            return int(browser.text("#tokens").replace(",", "")) > 0

        browser.until(computes, "token per second")
        browser.until(lambda: int(browser.text("#kv-legend div:first-child dd").split()[0]) > 0, "KV block in use")
    browser.wait_for("#running", "0")
    browser.wait_for("#ended-note", "3 cancelled")
    assert browser.run("return document.querySelector('#tokens-chart path').getAttribute('d').length") > 10


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_can_be_read_by_everybody(browser: Browser, haiku: RunningServer, view: str) -> None:
    browser.open(f"{haiku.base}/#{view}")
    browser.wait_for("#state", "ready")
    assert not re.search("undefined|NaN|null|object Object", browser.text("body"))
    controls = f"#view-{view} :is(button, input, select, textarea, a, [role=img])"
    nameless = browser.settled(
        lambda: [
            element.get_attribute("outerHTML")
            for element in browser.all(controls)
            if element.is_displayed() and not element.accessible_name
        ]
    )
    assert nameless == []
    for dark in (False, True):
        browser.look_at(1280, 900, dark=dark)
        assert browser.run(CONTRAST) == []
    browser.look_at(360, 740)
    assert browser.run("return document.documentElement.scrollWidth") <= 360, "a phone's page scrolls sideways"


def test_nothing_but_the_server_is_asked(browser: Browser, haiku: RunningServer) -> None:
    browser.open(haiku.base)
    browser.wait_for("#state", "ready")
    for view in VIEWS:
        browser.click(f'nav a[href="#{view}"]')
    browser.wait_for(".empty", "Talk to the model")
    asked = browser.asked()
    assert {f"{haiku.base}/", f"{haiku.base}/page/app.js", f"{haiku.base}/page/icon.svg"} < set(asked)
    assert all(address.startswith(f"{haiku.base}/") for address in asked), asked
    # The policy lets no script ask for anything else.
    blocked = browser.run("return fetch('http://127.0.0.2:9/').then(() => 'sent', (error) => error.name)")
    assert blocked == "TypeError" and "Content Security Policy" in browser.complaints()[0]


def test_a_server_with_keys_is_opened_with_one_and_seen_to_its_end(browser: Browser, tmp_path: Path) -> None:
    options = ("--threads", "1", "--api-key", KEY, "--admin-socket", str(tmp_path / "socket"))
    # What the paused engine does not finish is not cut off.
    options += ("--drain-timeout", str(PATIENCE))
    with serving(None, *options) as running:
        browser.open(f"{running.base}/#playground")
        browser.type("#key", f"{KEY}\n")
        browser.wait_for("#state", "haiku · ready")
        browser.type("#message", "Write a haiku about snow.\n")
        browser.wait_for("aside .timeline", "decode")
        # An end in order: what runs may finish, and nothing new begins.
        operator, key = Operator(tmp_path / "socket"), {"Authorization": f"Bearer {KEY}"}
        with operator.client() as client:
            # The timeline is there before the answer is complete.
            until(lambda: not client.get("/invariants").json()["load"]["running"])
        # Once the client has left, there is nothing to wait for, and nobody to let go on.
        operator.pause(True)
        with operator.client() as client, sent(running.base, "/v1/completions", LONG, key):
            until(lambda: client.get("/invariants").json()["load"]["waiting"])
            running.process.terminate()
            browser.wait_for("#banner", "The server is stopping")
        browser.wait_for("#banner", "does not answer")
        # Another signal while it ends would cut it off.
        assert running.process.wait(PATIENCE) == 0
        assert browser.complaints() == []
