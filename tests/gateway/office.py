"""Tenants of a gateway, and what a test does as their administrator on its page."""

import hashlib
import threading
import time
from decimal import Decimal

import httpx
from sqlalchemy import insert

from gateway.conftest import ANSWER, World, bearer
from penstock.core.usage import Used
from penstock.database.tables import keys as keys_table
from penstock.database.tables import organisations, projects
from penstock.tenancy.entries import Entry
from penstock.tenancy.ledger import enter
from penstock.tenancy.settings import Settings
from support.browser import Browser
from support.scripted_http import Received, Step, answer, stream, text_chunk, usage_chunk
from support.waiting import until

MARKUP = '<img src=x onerror="window.broken = 1">'
HELD = "wait for it"
MANY = 3000
DAY = 86400


class Office:
    """A gateway, its tenants, and the keys of those who administer them."""

    def __init__(self, world: World) -> None:
        self.world, self.released = world, threading.Event()
        self.gateway = world.gateway(self.answer)
        self.admin_id, self.admin = world.key(None, "admin")
        _, self.auditor = world.key(None, "auditor")

    def answer(self, request: Received) -> list[Step]:
        """What its replica says; what is held is answered once that is released."""
        if request.body["prompt"] == HELD:
            return stream(text_chunk("a"), self.released.is_set, usage_chunk(7, 5))
        return answer(ANSWER)

    def knows(self, secret: str) -> None:
        """Wait until the gateway has learned of an administrator's key."""
        until(lambda: self.read("administrator", secret).status_code == 200)

    def read(self, path: str, secret: str | None = None, **query: str) -> httpx.Response:
        """What the API says."""
        return self.gateway.http.get(f"/admin/v1/{path}", params=query, headers=bearer(secret or self.admin))


def furnish(world: World) -> None:
    """Tenants with limits, thousands of keys, names that are markup, and what they have used."""
    registry = world.registry
    registry.set_organisation("test", "acme", Settings(budget_per_month=Decimal(500)))
    registry.set_project("test", "acme.web", Settings(requests_per_minute=4, weight=2.0))
    registry.create_project("test", "acme.busy", Settings(max_concurrent_requests=1))
    registry.create_organisation("test", "zoo", Settings())
    registry.create_project("test", "zoo.many", Settings())
    now = time.time()
    with world.database.begin() as connection:
        # A name that the API would refuse, in case that another version, or hand, has written it.
        plain = {"settings": "{}", "created_at": now, "revision": 5}
        connection.execute(insert(organisations).values(name=MARKUP, **plain))
        connection.execute(insert(projects).values(name=f"{MARKUP}.{MARKUP}", organisation=MARKUP, **plain))
        owned = {"role": "member", "project": "zoo.many", "ends_streams": False, "settings": "{}", "revision": 5}
        rows = [
            {
                **owned,
                "id": f"key_{number:016x}",
                "name": f"k-{number}",
                "shown": f"penstock-{number:06d}",
                "sha256": hashlib.sha256(b"%d" % number).digest(),
                "created_at": now - MANY + number,
            }
            for number in range(MANY)
        ]
        connection.execute(insert(keys_table), rows)
    models = ("haiku", "sonnet", MARKUP)
    enter(
        world.database,
        [
            Entry(
                id=f"{day}-{model}",
                at=now - day * DAY,
                organisation="acme",
                project="acme.web",
                key="key_0000000000000007" if day == 3 else "key_gone",
                model=model,
                replica="r",
                outcome="answered",
                used=Used(1000 * (place + 1), 400, 300),
                is_estimated=False,
                cost=(place + 1) * (20 - day) * 10**11,
            )
            for day in range(1, 20)
            for place, model in enumerate(models)
        ],
    )


def sign_in(browser: Browser, office: Office, panel: str = "tenants", secret: str | None = None) -> None:
    browser.open(f"{office.gateway.url}/#admin/{panel}")
    browser.type("#admin-key", f"{secret or office.admin}\n")
    browser.wait_for("#admin-who", "key_")


def fill(browser: Browser, name: str, text: str) -> None:
    """Type into a field of a dialog, in the place of what is there."""
    field = browser.find(f"dialog[open] [name='{name}']")
    field.clear()
    field.send_keys(text)


def press(browser: Browser, text: str, within: str) -> None:
    """Click on the button that says so."""

    def click() -> bool:
        found = [each for each in browser.all(f"{within} button") if each.text == text and each.is_displayed()]
        if found:
            found[0].click()
        return bool(found)

    browser.until(lambda: browser.settled(click), f"button {text!r} in {within}")


def wait_until_closed(browser: Browser) -> None:
    """Until there is no dialog any more: one that has just been closed is removed a moment later."""
    browser.until(lambda: not browser.all("body > dialog:not([id])"), "end of the dialog")


def go(browser: Browser, panel: str) -> None:
    browser.run("location.hash = arguments[0]", f"#admin/{panel}")


def row(identifier: str) -> str:
    return f"tr[data-id='{identifier}']"
