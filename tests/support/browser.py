"""A page in headless Chromium, as somebody who reads and types sees it."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from urllib.parse import urljoin

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from support.waiting import PATIENCE, until

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
)
Result = TypeVar("Result")


class Browser:
    """A browser with one tab."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Go to a page as if nobody had been there: without a key, at a desk, in light colours."""
        if is_served := url.startswith("http"):
            # What was kept is forgotten at another page of the same origin, which takes no time to load.
            self.driver.get(urljoin(url, "/health"))
            self.run("sessionStorage.clear()")
        else:
            self.driver.get("about:blank")
        self.driver.get_log("performance")
        self.driver.get_log("browser")
        self.look_at(1280, 900)
        self.driver.get(url)
        if not is_served:
            self.run("sessionStorage.clear()")
            self.driver.refresh()

    def look_at(self, width: int, height: int, *, dark: bool = False) -> None:
        """The size of the window, and what the user has said of colours."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def run(self, script: str, *arguments: object) -> Any:
        """The result of a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> WebElement:
        """The one element that a selector means, once it can be seen."""
        return self.until(lambda: next((each for each in self.all(selector) if each.is_displayed()), None), selector)

    def all(self, selector: str) -> list[WebElement]:
        """Those that a selector means."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """What can be read there now; nothing where there is no such element."""
        return self.settled(lambda: " ".join(each.text for each in self.all(selector)))

    def click(self, selector: str) -> None:
        """Click on it."""
        self.settled(lambda: self.find(selector).click())

    def type(self, selector: str, keys: str) -> None:
        """Type into it."""
        self.settled(lambda: self.find(selector).send_keys(keys))

    def settled(self, look: Callable[[], Result]) -> Result:
        """What `look` returns where the page does not draw anew what it looks at; until then it looks again."""
        (result,) = self.until(lambda: (look(),), "moment in which nothing is drawn anew")
        return result

    def wait_for(self, selector: str, text: str) -> str:
        """Until the text can be read there; what else is there, too."""
        return self.until(
            lambda: found if text in (found := self.text(selector)) else None,
            lambda: f"{text!r} in {selector}, which has {self.text(selector)!r}",
        )

    def until(self, found: Callable[[], Result | None], what: str | Callable[[], str]) -> Result:
        """What `found` returns once it is something."""
        results: list[Result] = []

        def look() -> bool:
            # The page may draw anew between two questions.
            with contextlib.suppress(StaleElementReferenceException):
                results[:] = [result for result in [found()] if result]
            return bool(results)

        until(look, lambda: f"there is no {what if isinstance(what, str) else what()}")
        return results[0]

    def asked(self) -> list[str]:
        """Every address that was asked for since the last question."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """What the page's scripts, or the browser for its policy, have complained of; no answers with a bad status."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["source"] != "network"]


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    """A browser until the block ends. Skips the test where there is none, but for continuous integration."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        missing = "there is no chromium and chromedriver (Debian's packages chromium and chromium-driver)"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    started.set_script_timeout(PATIENCE)
    try:
        yield Browser(started)
    finally:
        started.quit()
