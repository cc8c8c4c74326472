"""The gateway's page in a real browser: the fleet as it changes, and the way of a request."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock.gateway.page
from end_to_end.test_page import CONTRAST
from gateway.conftest import Start
from gateway.test_told import line, telling
from penstock.gateway.page.files import GATEWAY_PAGE
from penstock.server.page.files import SHARED_PARTS
from server.test_page import check_sources
from support.browser import Browser, browsing
from support.scripted_http import Received, Script, Step, answer, whole_answer
from support.waiting import until

FOLDER = Path(penstock.gateway.page.__file__).with_name("static")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as started:
        yield started


def test_the_files_are_as_a_servers() -> None:
    own = {path.name for path in GATEWAY_PAGE.values()} - {*SHARED_PARTS}
    assert {path.name for path in FOLDER.iterdir()} == own
    check_sources(GATEWAY_PAGE)


def held(until_told: threading.Event) -> Script:
    def script(request: Received) -> list[Step]:
        return [until_told.is_set, *whole_answer(request)]

    return script


def test_what_replicas_tell_is_seen(gateway: Start, browser: Browser) -> None:
    states = [telling(line(models=["scripted"], running=1, waiting=2, blocks_used=5, blocks_total=10, most_running=4))]
    started = gateway(whole_answer, told=states)
    until(lambda: started.replicas.all[0].models)
    browser.open(started.url)
    browser.wait_for("#replicas tr:first-child", "scripted 3 of 9 2")
    assert browser.run("return document.querySelector('#replicas .bar').style.width") == "50%"


def test_the_fleet_is_seen_as_it_changes(gateway: Start, browser: Browser) -> None:
    told = threading.Event()
    started = gateway(held(told), lambda _request: answer(b"{}", 500), unheard=("http://127.0.0.1:9",))
    browser.open(started.url)
    browser.wait_for("#state", "2 of 3 replicas ready")
    browser.wait_for("#replicas tr:first-child", "ready")
    assert "it cannot be reached" in browser.text("#replicas tr:nth-child(3)")
    asked = threading.Thread(target=started.complete, kwargs={"max_tokens": 1})
    asked.start()
    browser.wait_for("#running", "1")
    told.set()
    asked.join()
    browser.wait_for("#outcomes", "1")
    second = "#replicas tr:nth-child(2)"
    # It is left out for a while only, and then tried again: each request may be such a trial.
    browser.until(
        lambda: started.complete(max_tokens=1) and "left out: it failed" in browser.text(second),
        "'left out: it failed'",
    )
    assert browser.complaints() == []


def test_a_requests_way_is_followed(gateway: Start, browser: Browser) -> None:
    started = gateway(lambda _request: answer(b"{}", 500), whole_answer)
    answered = started.complete(max_tokens=2)
    browser.open(f"{started.url}/#requests")
    browser.wait_for("#request-rows tr:first-child", started.servers[1].base)
    browser.click("#request-rows tr:first-child a")
    browser.wait_for("#detail", "it answered with status 500")
    assert browser.text("#detail .id") == answered.headers["x-request-id"]
    assert "Its replica does not say why it took its time." in browser.text("#detail")
    browser.run("location.hash = '#requests/unheard'")
    browser.wait_for("#detail", "No request 'unheard' of yours")


@pytest.mark.parametrize("view", ["fleet", "requests", "playground"])
def test_every_view_can_be_read_by_everybody(gateway: Start, browser: Browser, view: str) -> None:
    started = gateway(whole_answer, unheard=("http://127.0.0.1:9",))
    started.complete(max_tokens=1)
    browser.open(f"{started.url}/#{view}")
    browser.wait_for("#state", "1 of 2 replicas ready")
    for dark in (False, True):
        browser.look_at(1280, 900, dark=dark)
        assert browser.run(CONTRAST) == []
    browser.look_at(360, 740)
    assert browser.run("return document.documentElement.scrollWidth") <= 360, "a phone's page scrolls sideways"
    assert browser.complaints() == []
