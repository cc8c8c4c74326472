"""The live page in a real browser, before a server whose engine is scripted."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from penstock.access.keys import Keyring, only_key
from penstock.core.errors import EngineUnavailable
from penstock.server.app import create_app
from penstock.server.served import Model
from penstock.text.chat_template import ChatTemplate
from penstock.text.tokenizer import Tokenizer
from support.browser import Browser, browsing
from support.http_server import free_port, running
from support.scripted_engine import Call, ScriptedEngine

KEY = "sk-0123456789abcdef0123456789abcdef"
ATTACK = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script><b>&amp;"
TEMPLATE = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
NAME = "<i>scripted</i>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as started:
        yield started


class Scripted:
    """Servers without keys and with one, whose engine answers with an attack."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.engine = ScriptedEngine(tokenizer.table, tokenizer.encode(ATTACK, False), name=NAME, max_model_len=2000)
        self.app = create_app(self.engine, tokenizer, template=TEMPLATE)
        self.again = create_app(self.engine, tokenizer, template=TEMPLATE)
        self.keyed = create_app(self.engine, tokenizer, template=TEMPLATE, keys=Keyring([only_key(KEY)]))


@pytest.fixture
def scripted(tokenizer: Tokenizer) -> Scripted:
    return Scripted(tokenizer)


def test_what_a_model_and_its_user_write_stays_text(browser: Browser, scripted: Scripted) -> None:
    with running(scripted.app) as url:
        browser.open(f"{url}/#playground")
        browser.wait_for("#state", NAME)
        browser.type("#message", f"{ATTACK}\n")
        browser.wait_for("aside .account", "queue")
        assert browser.text(".question") == ATTACK and browser.text(".answer-text") == ATTACK
        scripted.engine.before = fail_with("<b>no</b>")
        browser.type("#message", "again\n")
        browser.wait_for(".problem", "<b>no</b>")
        assert browser.all("main b, main i, main img") == [] and browser.run("return document.title") != "taken"
        assert browser.complaints() == []


def test_an_address_that_is_no_text_does_not_stop_the_page(browser: Browser, scripted: Scripted) -> None:
    with running(scripted.app) as url:
        browser.open(f"{url}/#requests/%E0%A4%A")
        browser.wait_for("#detail", "No request")
        assert browser.complaints() == []


def fail_with(message: str) -> Callable[[Call], None]:
    def before(call: Call) -> None:
        raise EngineUnavailable(message)

    return before


def test_an_answer_is_stopped_and_the_conversation_goes_on(browser: Browser, scripted: Scripted) -> None:
    gate = threading.Event()
    calls = scripted.engine.calls

    async def hold(call: Call) -> None:
        while call.outputs == 3 and not gate.is_set():
            await asyncio.sleep(0.01)

    scripted.engine.before = hold
    with running(scripted.app) as url:
        browser.open(f"{url}/#playground")
        browser.type("#temperature", "0.5")
        browser.type("#max-tokens", "20")
        browser.type("#seed", "17")
        browser.type("#message", "one\n")
        # The first tokens are there while the others are not computed yet, and so is the account so far.
        seen = browser.until(lambda: browser.text(".answer-text"), "token")
        assert ATTACK.startswith(seen) and len(seen) < len(ATTACK)
        browser.wait_for("aside .account", "queue")
        browser.click("#stop")
        browser.wait_for(".summary", "stopped")
        browser.until(calls[0].closed.is_set, "end of the request in the engine")
        assert (calls[0].params.temperature, calls[0].params.max_tokens, calls[0].params.seed) == (0.5, 20, 17)
        gate.set()
        browser.type("#message", "two\n")
        browser.wait_for(".turn:nth-child(2) .summary", "cut off at the most tokens")
        browser.wait_for(".turn:nth-child(2) .note", "seed 17")
        # What was said before is a part of the prompt, what came of the answer that was stopped included.
        assert len(calls[1].prompt) > len(calls[0].prompt) + 3
        browser.click("#new-chat")
        browser.wait_for(".empty", "Talk to the model")
        assert browser.complaints() == []


def test_a_request_is_explained_while_it_waits(browser: Browser, scripted: Scripted) -> None:
    async def hold(call: Call) -> None:
        await call.closed.wait()

    scripted.engine.before = hold
    with running(scripted.app) as url:
        browser.open(f"{url}/#playground")
        browser.type("#message", "one\n")
        # The head of the response is not there yet.
        browser.wait_for("aside .verdict", "It waits for")
        assert browser.text(".summary") == "waiting for the first token …"
        browser.click("#stop")
        browser.wait_for(".summary", "stopped")
        browser.until(scripted.engine.calls[0].closed.is_set, "end of the request in the engine")
        assert browser.find("#message").get_attribute("value") == "one"


def test_a_wrong_value_is_told_in_one_sentence(browser: Browser, scripted: Scripted) -> None:
    with running(scripted.app) as url:
        browser.open(f"{url}/#playground")
        browser.type("#temperature", "-3")
        browser.type("#message", "one\n")
        assert "temperature" in browser.wait_for(".problem", "-3")
        # What was asked can be sent again.
        assert browser.find("#message").get_attribute("value") == "one"


def test_a_server_with_keys_asks_for_one(browser: Browser, scripted: Scripted) -> None:
    with running(scripted.keyed) as url:
        browser.open(url)
        browser.wait_for("#key-title", "asks for an API key")
        assert browser.text("#running") == "–", "nothing is known yet"
        browser.type("#key", "wrong\n")
        browser.wait_for("#key-message", "none of this server's")
        browser.type("#key", f"{KEY}\n")
        browser.wait_for("#state", "ready")
        assert not browser.find("body").find_elements("css selector", "dialog[open]")
        # The key stays in the tab through a new start of the page, and nowhere else.
        browser.driver.refresh()
        browser.wait_for("#running", "2")
        assert browser.run("return [localStorage.length, document.cookie]") == [0, ""]
        assert KEY not in browser.run("return document.documentElement.outerHTML")
        browser.click("#forget")
        browser.wait_for("#key-title", "asks for an API key")


def test_a_server_that_goes_away_is_waited_for(browser: Browser, scripted: Scripted) -> None:
    port = free_port()
    with running(scripted.app, port=port) as url:
        scripted.engine.unavailable = "The engine is being started."
        browser.open(url)
        browser.wait_for("#banner", "being started")
        browser.wait_for("#state", "not ready")
        scripted.engine.unavailable = None
        browser.until(lambda: not browser.text("#banner"), "end of the banner")
        assert browser.run("return document.getElementById('model').value") == NAME
    assert "What is shown is from" in browser.wait_for("#banner", "does not answer")
    browser.wait_for("#state", "away")
    with running(scripted.again, port=port):
        browser.wait_for("#state", "ready")
        assert browser.text("#banner") == "" and browser.text("#running") == "2"


def test_a_page_that_nobody_sees_asks_for_nothing(browser: Browser, scripted: Scripted) -> None:
    hide = """
        Object.defineProperty(document, "hidden", { value: arguments[0], configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    """
    with running(scripted.app) as url:
        browser.open(url)
        browser.wait_for("#state", "ready")
        browser.run(hide, True)

        def asks_nothing() -> bool:
            """For a while of the page's own clock, in which it would ask more than once if it were seen."""
            browser.asked()
            browser.driver.execute_async_script("setTimeout(arguments[0], 1500)")
            return browser.asked() == []

        # What was under way when the page was hidden may come first.
        browser.until(asks_nothing, "end of the questions")
        browser.run(hide, False)
        assert browser.until(browser.asked, "question after the page is seen again") == [f"{url}/v1/stats"]


def test_of_several_models_one_is_shown(browser: Browser, scripted: Scripted, tokenizer: Tokenizer) -> None:
    other = ScriptedEngine(tokenizer.table, [5], name="<b>other</b>", max_model_len=77)
    app = create_app(scripted.engine, tokenizer, template=TEMPLATE, beside=[Model(engine=other, tokenizer=tokenizer)])
    with running(app) as url:
        browser.open(f"{url}/#live")
        browser.wait_for("#state", NAME)
        assert browser.run("return [...document.querySelector('#shown-model').options].map((o) => o.value)") == [
            NAME,
            "<b>other</b>",
        ]
        browser.run(
            "const choice = document.querySelector('#shown-model'); choice.value = '<b>other</b>';"
            "choice.dispatchEvent(new Event('change'))"
        )
        browser.wait_for("#state", "<b>other</b>")
        assert browser.complaints() == []
    with running(scripted.app) as url:
        browser.open(f"{url}/#live")
        browser.wait_for("#state", NAME)
        assert browser.run("return document.querySelector('#shown').hidden")
