"""The administrator's view of a gateway's page in a real browser, on one gateway and its database."""

import contextlib
import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select
from sqlalchemy import insert

from end_to_end.test_page import CONTRAST
from gateway.conftest import Start, World, ask, bearer, gateways, knows
from gateway.office import (
    DAY,
    HELD,
    MANY,
    MARKUP,
    Office,
    fill,
    furnish,
    go,
    press,
    row,
    sign_in,
    wait_until_closed,
)
from penstock.database.tables import organisations, projects
from penstock.gateway import page as gateway_page
from penstock.tenancy.settings import Settings
from support.browser import Browser, browsing
from support.waiting import until

PANELS = ("tenants", "administrators", "spending", "limits", "audit")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as started:
        yield started


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    folder = tmp_path_factory.mktemp("tenants")
    with gateways() as start:
        world = World(start, f"sqlite:///{folder / 'tenants.sqlite'}", folder)
        furnish(world)
        opened = Office(world)
        opened.knows(opened.admin)
        opened.knows(opened.auditor)
        yield opened
        world.database.close()


def secret_shown(browser: Browser) -> str:
    """The new key, which is copied and then seen no more."""
    secret = str(browser.find(".secret").get_attribute("value"))
    press(browser, "Copy", "dialog[open]")
    browser.wait_for("dialog[open] [role=status]", "Copied.")
    # It is not lost by a key that was pressed too early.
    ActionChains(browser.driver).send_keys(Keys.ESCAPE).perform()
    assert browser.find(".secret").get_attribute("value") == secret
    press(browser, "I have kept it", "dialog[open]")
    wait_until_closed(browser)
    assert secret not in browser.run("return document.documentElement.outerHTML")
    return secret


def test_from_an_organisation_to_a_key_that_works(browser: Browser, office: Office) -> None:
    sign_in(browser, office)
    press(browser, "New organisation", ".tenants")
    fill(browser, "name", "a b")
    press(browser, "Make it", "dialog[open]")
    # What the API says, as it is; what was typed stays.
    refused = office.gateway.http.post("/admin/v1/organisations", json={"name": "a b"}, headers=bearer(office.admin))
    browser.wait_for("dialog[open] .problem", refused.json()["error"]["message"])
    fill(browser, "name", "farm")
    fill(browser, "requests_per_minute", "many")
    press(browser, "Make it", "dialog[open]")
    browser.wait_for("dialog[open] .problem", "requests_per_minute: cannot be used: Expected `int | null`, got `str`")
    fill(browser, "requests_per_minute", "600")
    fill(browser, "budget_per_month", "2.50")
    press(browser, "Make it", "dialog[open]")
    browser.wait_for(".tenant", "requests per minute\n600")
    press(browser, "New project", ".tenant")
    fill(browser, "name", "cows")
    fill(browser, "weight", "2")
    fill(browser, "models", "scripted, other")
    press(browser, "Make it", "dialog[open]")
    browser.wait_for(".tenant h2", "farm.cows")
    browser.wait_for("#tree [aria-current]", "cows")
    made = next(each for each in office.read("projects").json()["data"] if each["name"] == "farm.cows")
    assert made["settings"] == {"models": ["scripted", "other"], "weight": 2.0}
    press(browser, "New key", ".tenant")
    fill(browser, "name", "bell")
    fill(browser, "days", "30")
    fill(browser, "max_output_tokens", "50")
    press(browser, "Make the key", "dialog[open]")
    secret = secret_shown(browser)
    (key,) = office.read("keys", project="farm.cows").json()["data"]
    assert key["settings"] == {"max_output_tokens": 50} and 29.9 * DAY < key["expires_at"] - time.time() < 30 * DAY
    browser.wait_for(row(key["id"]), "max output tokens 50")
    knows(office.gateway, secret)
    assert ask(office.gateway, secret).status_code == 200
    # What it uses is seen: of the limits of its organisation, and the day of its last use.
    go(browser, "tenants:farm")
    browser.wait_for("[data-limit='budget_per_month']", "0.000017 of 2.5")
    listed = lambda: office.read("keys", project="farm.cows").json()["data"][0]  # noqa: E731
    until(lambda: listed()["last_used_on"] is not None)
    go(browser, "tenants:farm.cows")
    browser.wait_for(row(key["id"]), listed()["last_used_on"])
    assert browser.complaints() == []


def test_a_key_is_changed_rotated_and_revoked(browser: Browser, office: Office) -> None:
    identifier, secret = office.world.key(requests_per_minute=7, models=["scripted"])
    knows(office.gateway, secret)
    sign_in(browser, office, "tenants:acme.web")
    browser.wait_for(row(identifier), "requests per minute 7")
    press(browser, "Change", row(identifier))
    fill(browser, "requests_per_minute", "")
    fill(browser, "tokens_per_minute", "1000")
    press(browser, "Change it", "dialog[open]")
    browser.wait_for(row(identifier), "tokens per minute 1000")
    assert office.world.registry.key(identifier).settings == Settings(models=("scripted",), tokens_per_minute=1000)
    before = time.time()
    press(browser, "Rotate", row(identifier))
    fill(browser, "hours", "1")
    press(browser, "Rotate it", "dialog[open]")
    new = secret_shown(browser)
    old = office.world.registry.key(identifier)
    assert old.expires_at is not None and before + 3600 <= old.expires_at <= time.time() + 3600
    knows(office.gateway, new)
    press(browser, "Revoke", row(identifier))
    # What cannot be taken back is not done by Enter, nor if one leaves.
    assert browser.run("return document.activeElement.name") == "end_streams"
    ActionChains(browser.driver).send_keys(Keys.ESCAPE).perform()
    wait_until_closed(browser)
    assert office.world.registry.key(identifier).revoked_at is None
    press(browser, "Revoke", row(identifier))
    browser.click("dialog[open] [name=end_streams]")
    press(browser, "Revoke it", "dialog[open]")
    browser.wait_for(row(identifier), "revoked")
    revoked = office.world.registry.key(identifier)
    assert revoked.revoked_at is not None and revoked.ends_streams
    assert browser.text(f"{row(identifier)} button") == ""
    until(lambda: ask(office.gateway, secret).status_code == 401)
    go(browser, "audit")
    browser.wait_for("#audit-rows", f"{office.admin_id} key.revoke {identifier}")
    assert browser.complaints() == []


def test_a_new_key_is_seen_though_the_own_one_is_taken_no_longer(browser: Browser, office: Office) -> None:
    identifier, own = office.world.key(None, "admin")
    office.knows(own)
    sign_in(browser, office, "tenants:acme.web", own)
    press(browser, "New key", ".tenant")
    fill(browser, "name", "last")
    press(browser, "Make the key", "dialog[open]")
    browser.find(".secret")
    office.world.registry.revoke_key("test", identifier)
    browser.wait_for("#sign-in-problem", "was revoked at")
    knows(office.gateway, secret_shown(browser))
    # So is that which takes the place of the own one.
    identifier, own = office.world.key(None, "admin")
    office.knows(own)
    sign_in(browser, office, "administrators", own)
    press(browser, "Rotate", row(identifier))
    fill(browser, "hours", "0")
    press(browser, "Rotate it", "dialog[open]")
    new = secret_shown(browser)
    until(lambda: office.read("administrator", own).status_code == 401)
    go(browser, "audit")
    browser.wait_for("#sign-in-problem", "expired at")
    office.knows(new)
    go(browser, "administrators")
    browser.type("#admin-key", f"{new}\n")
    browser.wait_for(row(identifier), "expired")


def test_a_tenant_is_closed(browser: Browser, office: Office) -> None:
    office.world.registry.create_organisation("test", "shop", Settings())
    office.world.registry.create_project("test", "shop.web", Settings())
    sign_in(browser, office, "tenants:shop.web")
    press(browser, "Close", ".tenant .card:first-child")
    press(browser, "Close it", "dialog[open]")
    browser.wait_for(".tenant", "none of its keys is taken")
    assert office.world.registry.project("shop.web").closed_at is not None
    browser.wait_for("#tree [data-name='shop.web']", "closed")
    assert browser.text(".tenant .card:first-child button") == ""
    press(browser, "New key", ".tenant")
    fill(browser, "name", "late")
    press(browser, "Make the key", "dialog[open]")
    browser.wait_for("dialog[open] .problem", "The project shop.web is closed, and takes nothing new.")


def test_an_auditor_sees_everything_and_changes_nothing(browser: Browser, office: Office) -> None:
    sign_in(browser, office, "tenants:acme.web", office.auditor)
    browser.wait_for("#admin-who", "an auditor, who changes nothing")
    browser.wait_for(".tenant", "requests per minute\n4")
    seen = {"administrators": office.admin_id, "spending": "sonnet", "limits": "acme", "audit": "project.set"}
    for panel, text in seen.items():
        browser.click(f"#admin-tabs a[href='#admin/{panel}']")
        browser.wait_for("#admin-panel", text)
        said = [each.text for each in browser.all("#admin-panel button") if each.is_displayed()]
        assert set(said) <= {"Newer", "Older"}, said
    assert browser.complaints() == []


def test_the_key_is_in_memory_only(browser: Browser, office: Office) -> None:
    sign_in(browser, office)
    browser.wait_for("#tree", "acme")
    places = "return JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, location.href])"
    assert office.admin not in browser.run(places)
    assert office.admin not in browser.run("return document.documentElement.outerHTML")
    assert browser.run("return document.querySelector('#admin-key').value") == ""
    assert all(office.admin not in address for address in browser.asked())
    press(browser, "Sign out", "#administration")
    browser.find("#admin-key")
    # What it has shown is forgotten with it.
    assert browser.run("return document.querySelector('#admin-panel').childNodes.length") == 0
    sign_in(browser, office)
    browser.driver.refresh()
    browser.find("#admin-key")
    assert "acme" not in browser.text("body")


def test_who_is_no_administrator_is_told_so(browser: Browser, office: Office) -> None:
    _, member = office.world.key()
    knows(office.gateway, member)
    browser.open(f"{office.gateway.url}/")
    # The page asks for a key of a project; administrators have others.
    browser.click("#key-dialog a[href='#admin']")
    for key in ("penstock-guessed", member):
        browser.type("#admin-key", f"{key}\n")
        says = office.read("administrator", key).json()["error"]["message"]
        browser.wait_for("#sign-in-problem", says)
        assert key not in browser.run("return document.documentElement.outerHTML")
    browser.wait_for("#state", "ready")
    identifier, admin = office.world.key(None, "admin")
    office.knows(admin)
    browser.type("#admin-key", f"{admin}\n")
    browser.wait_for("#admin-who", identifier)
    # A key that is taken no longer ends what it has opened.
    office.world.registry.revoke_key("test", identifier)
    until(lambda: office.read("administrator", admin).status_code == 401)
    go(browser, "limits")
    browser.wait_for("#sign-in-problem", "was revoked at")
    assert browser.run("return document.querySelector('#admin-panel').childNodes.length") == 0
    # The other views still want a key of a project.
    browser.run("location.hash = '#fleet'")
    browser.type("#key", f"{member}\n")
    browser.wait_for("#state", "1 of 1 replica ready")
    assert browser.complaints() == []


def test_names_are_text(browser: Browser, office: Office) -> None:
    sign_in(browser, office)
    browser.wait_for("#tree", MARKUP)
    browser.click("#tree .organisation:first-child a")
    browser.wait_for(".tenant h2", MARKUP)
    browser.click("#tree .project:nth-child(2) a")
    browser.wait_for(".tenant h2", f"{MARKUP}.{MARKUP}")
    go(browser, "spending")
    browser.wait_for("#totals", MARKUP)
    ActionChains(browser.driver).move_to_element(browser.find(".plot")).perform()
    browser.wait_for(".readout", "sonnet")
    office.gateway.http.get("/v1/models", headers={**bearer(MARKUP), "x-forwarded-for": MARKUP})
    office.world.registry.note(MARKUP, "key.refused", MARKUP, {"why": MARKUP})
    go(browser, "audit")
    browser.wait_for("#audit-rows", f'{{ "why": {json.dumps(MARKUP)} }}')
    assert browser.run("return document.querySelectorAll('#view-admin img').length") == 0
    assert browser.run("return window.broken") is None
    assert browser.complaints() == []


def test_thousands_of_keys_come_in_pages(browser: Browser, office: Office) -> None:
    sign_in(browser, office, "tenants:zoo.many")
    listed = ".tenant .keys tr"
    browser.wait_for(f"{listed}:first-child", f"k-{MANY - 1}")
    assert len(browser.all(listed)) == 50
    press(browser, "Older", ".tenant")
    browser.wait_for(f"{listed}:first-child", f"k-{MANY - 51}")
    press(browser, "Newer", ".tenant")
    browser.wait_for(f"{listed}:first-child", f"k-{MANY - 1}")
    browser.type(".tenant input[type=search]", "penstock-000007")
    browser.wait_for(f"{listed}:first-child", "k-7\n")
    browser.until(lambda: len(browser.all(listed)) == 1, "one key")
    (found,) = office.read("keys", search="penstock-000007").json()["data"]
    assert found["last_used_on"] is not None and found["last_used_on"] in browser.text(listed)
    browser.type(".tenant input[type=search]", "x")
    browser.wait_for(".tenant .keys", "There is no such key.")


def test_hundreds_of_tenants_come_in_pages(browser: Browser, gateway: Start, tmp_path: Path) -> None:
    world = World(gateway, f"sqlite:///{tmp_path / 'tenants.sqlite'}", tmp_path)
    plain = {"settings": "{}", "created_at": 1.0, "revision": 1}
    names = [f"org-{number:03}" for number in range(250)]
    with world.database.begin() as connection:
        connection.execute(insert(organisations), [{"name": name, **plain} for name in names])
        owned = [{"name": f"{name}.web", "organisation": name, **plain} for name in names]
        connection.execute(insert(projects), owned)
    office = Office(world)
    office.knows(office.admin)
    sign_in(browser, office, "tenants:org-240.web")
    # The page of the tree that has it is shown; others' projects are closed up.
    browser.wait_for("#tree [aria-current]", "web")
    assert browser.text("#tree .project") == "web"
    press(browser, "Back", ".tenants")
    press(browser, "Back", ".tenants")
    browser.wait_for("#tree li:first-child", "acme")
    assert len(browser.all("#tree li")) == 100
    browser.type(".tenants input[type=search]", "g-12")
    browser.until(lambda: len(browser.all("#tree li")) == 20, "line for each that is found")
    browser.click("#tree [data-name='org-125.web'] a")
    browser.wait_for(".tenant h2", "org-125.web")
    # What was found stays.
    assert len(browser.all("#tree li")) == 20
    world.database.close()


def test_spending_is_drawn(browser: Browser, office: Office) -> None:
    sign_in(browser, office, "spending")
    browser.wait_for("#totals tr:first-child", MARKUP)
    today = datetime.now(UTC)
    query = {"first": f"{today - timedelta(days=29):%Y-%m-%d}", "last": f"{today:%Y-%m-%d}"}
    told = office.read("spending", **query, most="7").json()
    assert [each["name"] for each in told["totals"]][:3] == [MARKUP, "sonnet", "haiku"]
    assert browser.run("return [...document.querySelectorAll('#totals [title]')].map((each) => each.title)") == [
        each["cost"] for each in told["totals"]
    ]
    paths = "return [...document.querySelectorAll('.plot path.series')].map((each) => each.getAttribute('d'))"
    # A column for each day on which something was used.
    assert [path.count("M") for path in browser.run(paths)[:3]] == [19, 19, 19]
    # By the keyboard, from the last day to the last one on which something was used of this model.
    browser.run("document.querySelector('.plot').focus()")
    ActionChains(browser.driver).send_keys(Keys.END).perform()
    day = max(each["day"] for each in told["days"] if each["name"] == MARKUP)
    lefts = (date.fromisoformat(browser.text(".readout")[: len(day)]) - date.fromisoformat(day)).days
    ActionChains(browser.driver).send_keys(*[Keys.ARROW_LEFT] * lefts).perform()
    browser.wait_for(".readout", f"{day}: 11.40 · {MARKUP} 5.70 · sonnet 3.80 · haiku 1.90")
    choices = {"measure": ("tokens", "tokens by day"), "by": ("project", "acme.web"), "period": ("7 days", "acme.web")}
    for name, (value, seen) in choices.items():
        Select(browser.find(f"[data-choice={name}]")).select_by_visible_text(value)
        browser.wait_for(".spending", seen)
    browser.click(".spending summary")
    browser.until(lambda: len(browser.all(".spending details tbody tr")) == 7, "row for each day")
    browser.type("[list=owners]", f"zoo.none{Keys.TAB}")
    browser.wait_for(".spending .problem", office.read("spending", **query, of="zoo.none").json()["error"]["message"])
    assert browser.complaints() == []


def test_limits_in_use_are_bars(browser: Browser, office: Office) -> None:
    _, secret = office.world.key("acme.busy")
    knows(office.gateway, secret)
    sign_in(browser, office, "limits")
    place = "[data-owner='project/acme.busy'][data-limit='max_concurrent_requests']"
    browser.wait_for(place, "0 of 1, 0%")
    body = {"model": "scripted", "prompt": HELD, "stream": True}
    with office.gateway.http.stream("POST", "/v1/completions", json=body, headers=bearer(secret)) as response:
        assert response.status_code == 200
        # It is asked for again by itself.
        browser.wait_for(place, "1 of 1, 100%")
        look = f'const {{ className, style }} = document.querySelector("{place} .bar"); return [className, style.width]'
        assert browser.run(look) == ["bar full", "100%"]
        office.released.set()
        response.read()
    browser.wait_for(place, "0 of 1, 0%")
    browser.wait_for("[data-limit='budget_per_month']", "of 500")


def test_everything_can_be_done_by_keyboard(browser: Browser, office: Office) -> None:
    browser.open(f"{office.gateway.url}/#admin")
    keyboard = ActionChains(browser.driver)
    browser.find("#admin-key")
    browser.run("document.querySelector('#admin-key').focus()")
    keyboard.send_keys(office.admin, Keys.ENTER).perform()
    browser.wait_for("#tree", "zoo")
    browser.run("document.querySelector('#tree [data-name=zoo] a').focus()")
    ActionChains(browser.driver).send_keys(Keys.ENTER).perform()
    browser.wait_for(".tenant h2", "zoo")
    browser.until(lambda: browser.run("return document.querySelector('.tenant .actions button')"), "button")
    browser.run("document.querySelector('.tenant .actions button').focus()")
    ActionChains(browser.driver).send_keys(Keys.ENTER).perform()
    browser.find("dialog[open]")
    assert browser.run("return document.activeElement.name") == "name"
    # Nothing behind the dialog gets the focus.
    for _ in range(20):
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        assert browser.run(
            "return document.activeElement === document.body || !!document.activeElement.closest('dialog')"
        )
    ActionChains(browser.driver).send_keys(Keys.ESCAPE).perform()
    wait_until_closed(browser)
    assert browser.run("return document.activeElement.textContent") == "New project"


@pytest.mark.parametrize("panel", ["", *PANELS, "tenants:acme.web", "tenants:zoo"])
def test_every_panel_can_be_read_by_everybody(browser: Browser, office: Office, panel: str) -> None:
    if panel:
        sign_in(browser, office, panel)
        browser.until(lambda: browser.all("#admin-panel .card"), "card")
    else:
        browser.open(f"{office.gateway.url}/#admin")
        browser.find("#admin-key")
    for dark in (False, True):
        browser.look_at(1280, 900, dark=dark)
        assert browser.run(CONTRAST) == []
    browser.look_at(360, 740)
    assert browser.run("return document.documentElement.scrollWidth") <= 360, "a phone's page scrolls sideways"
    if panel == "tenants:zoo":
        press(browser, "Change", ".tenant")
        browser.find("dialog[open]")
        assert browser.run(CONTRAST) == []
        assert browser.run("return document.documentElement.scrollWidth") <= 360
    addresses = browser.asked()
    assert all(address.startswith(office.gateway.url) for address in addresses), addresses
    assert browser.complaints() == []


def test_a_gateway_without_tenants_is_told_from_others(browser: Browser) -> None:
    script: Any = lambda _request: []  # noqa: E731
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(gateways())(script)
        browser.open(f"{plain.url}/#admin")
        browser.type("#admin-key", "penstock-anything\n")
        browser.wait_for("#sign-in-problem", "This gateway has no database of tenants")


def test_the_page_knows_all_settings() -> None:
    script = (Path(gateway_page.__file__).parent / "static" / "settings.js").read_text()
    notes = script.partition("const NOTES = {")[2].partition("};")[0]
    assert set(re.findall(r"^  (\w+):", notes, re.MULTILINE)) == set(Settings.__struct_fields__)
