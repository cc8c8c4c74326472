"""What guardrails say of requests and answers, and what becomes of these."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from itertools import product
from typing import get_args

import msgspec
from starlette.types import Send

from penstock.access.errors import NotPermitted
from penstock.access.tenants import Tenant
from penstock.core.errors import InvalidParameter, RequestError
from penstock.gateway.answer_text import TEXT_PATHS, UNREADABLE, AnswerText
from penstock.gateway.asked import Asked, parse_asked
from penstock.gateway.errors import ContentRefused, GuardrailUnavailable
from penstock.gateway.figures import Figures
from penstock.gateway.guardrail_client import MOST_REASON, GuardrailClient, NoVerdict, Question, Verdict
from penstock.gateway.guardrail_options import Guardrail
from penstock.gateway.held_answer import HeldAnswer
from penstock.gateway.ways import Checked, Way
from penstock.observability.gateway_definitions import CheckResult, When

logger = logging.getLogger("penstock.gateway")

_RESPONSES = "/v1/responses"
_NOT_REPLACED = ("model", "stream", "previous_response_id")
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_REPLACED_IN_STREAM = "it wants to replace what is in it, which cannot be done in a stream"
_REPLACED_WHERE_STORED = "it wants to replace what is in it, which a replica has stored; send store: false"


class Guardrails:
    """All of a gateway, in the order in which they are asked."""

    def __init__(self, guardrails: Sequence[Guardrail], figures: Figures) -> None:
        """Raises ConfigurationError where a key is not in the environment."""
        self._clients = [GuardrailClient(each) for each in guardrails]
        self.figures = figures
        for each, when, result in product(guardrails, get_args(When), get_args(CheckResult)):
            if each.looks(when):
                figures.guarded[each.name, when, result] = 0

    def of(self, tenant: Tenant, models: Collection[str], path: str, way: Way) -> "Checks":
        """Those that look at a request which may get one of some models; none: it may get any."""
        mine = [
            client for client in self._clients if client.options.is_for(tenant) and client.options.is_for_one_of(models)
        ]
        return Checks(mine, tenant, path, way, self.figures)

    def check_batches(self, tenant: Tenant) -> None:
        """Raise NotPermitted where a batch would get around them: its lines are not looked at here."""
        for client in self._clients:
            if client.options.is_for(tenant):
                raise NotPermitted(
                    f"The guardrail {client.options.name} looks at what this API key asks, and not at lines of "
                    "batches; send the requests one by one."
                )

    def close(self) -> None:
        """Close all connections to guardrails."""
        for client in self._clients:
            client.close()


class Checks:
    """What is asked of guardrails for one request."""

    def __init__(
        self, clients: Sequence[GuardrailClient], tenant: Tenant, path: str, way: Way, figures: Figures
    ) -> None:
        self._before = [each for each in clients if each.options.looks("before")]
        self._after = [each for each in clients if each.options.looks("after")] if path in TEXT_PATHS else []
        self._tenant, self._path, self._way, self._figures = tenant, path, way, figures
        self._body = msgspec.Raw(b"")
        self._model: str | None = None
        self._is_stored = False

    async def before(self, asked: Asked, body: bytes) -> tuple[Asked, bytes]:
        """The request as guardrails let it pass. Raises ContentRefused, GuardrailUnavailable, InvalidParameter."""
        if not self._before and not self._after:
            return asked, body
        body = _each_name_once(body)
        if self._after and self._path == _RESPONSES:
            self._check_answerable(body)
        asked, body = await self._ask_before(asked, body)
        if self._after:
            self._body, self._model = msgspec.Raw(body), asked.model
            self._is_stored = self._path == _RESPONSES and bytes(_fields(body).get("store", b"null")) != b"false"
        return asked, body

    async def _ask_before(self, asked: Asked, body: bytes) -> tuple[Asked, bytes]:
        for client in self._before:
            verdict = await self._ask(client, self._question("before", asked.model, body))
            if verdict is None or verdict.action == "allow":
                continue
            if verdict.action == "deny":
                raise _refused(client, "request", verdict.reason)
            replaced = self._replaced(client, asked, bytes(verdict.body))
            if replaced is not None:
                asked, body = replaced
        return asked, body

    def holding(self, send: Send) -> "HeldAnswer | None":
        """What holds the answer until guardrails let it pass; None where none looks at it."""
        if not self._after:
            return None
        windows = [each.options.window for each in self._after]
        # Who knows the id of a stored response can ask for it.
        whole = self._is_stored or None in windows
        window = None if whole else max(each for each in windows if each is not None)
        return HeldAnswer(self, window, send)

    async def after(self, text: AnswerText, *, passed: int, whole: bool, body: bytes | None) -> bytes | None:
        """Ask of what there is of an answer, `body` where it is no stream; that body as it may pass.

        Raises ContentRefused, GuardrailUnavailable.
        """
        for client in self._after:
            question = msgspec.structs.replace(
                self._question("after", self._model, bytes(self._body)),
                text=str(text),
                passed=passed,
                whole=whole,
                answer=None if body is None else msgspec.Raw(body),
            )
            verdict = await self._ask(client, question)
            if verdict is None or verdict.action == "allow":
                continue
            if verdict.action == "deny":
                raise _refused(client, "answer", verdict.reason)
            if body is None:
                raise _refused(client, "answer", verdict.reason or _REPLACED_IN_STREAM)
            if self._is_stored:
                raise _refused(client, "answer", _REPLACED_WHERE_STORED)
            replaced = self._read(client, bytes(verdict.body))
            if replaced is not None:
                body, text = bytes(verdict.body), replaced
        return body

    def _read(self, client: GuardrailClient, body: bytes) -> AnswerText | None:
        """The text of an answer in the place of another; None where it cannot be read, and that one may pass."""
        text = AnswerText()
        try:
            text.take_whole(body)
        except UNREADABLE as error:
            self._failed(client, "after", "failure", f"the answer that it gives cannot be read ({error})", 0.0)
            return None
        return text

    def unread(self, why: str) -> None:
        """An answer cannot be looked at. Raises GuardrailUnavailable where that is not to pass."""
        for client in self._after:
            self._failed(client, "after", "failure", why, 0.0)

    def _question(self, when: When, model: str | None, body: bytes) -> Question:
        return Question(self._way.id, when, self._path, self._tenant.name, model, msgspec.Raw(body))

    def _check_answerable(self, body: bytes) -> None:
        if bytes(_fields(body).get("background", b"null")) not in (b"null", b"false"):
            raise InvalidParameter(
                "background", "is true, and what is answered later is looked at by no guardrail; leave it out."
            )

    async def _ask(self, client: GuardrailClient, question: Question) -> Verdict | None:
        """What a guardrail says; None where it says nothing, and what it was asked of is to pass all the same."""
        began = _now()
        try:
            verdict = await client.ask(question)
        except NoVerdict as none:
            result: CheckResult = "timeout" if none.is_late else "failure"
            self._failed(client, question.when, result, none.why, _now() - began)
            return None
        self._note(client, question.when, verdict.action, _now() - began)
        return verdict

    def _failed(self, client: GuardrailClient, when: When, result: CheckResult, why: str, seconds: float) -> None:
        name, is_open = client.options.name, client.options.on_failure == "open"
        what = "request" if when == "before" else "answer"
        then = f"the {what} passes unseen" if is_open else f"the {what} is refused"
        logger.warning("The guardrail %s does not look at %s: %s; %s", name, self._way.id, why, then)
        self._note(client, when, result, seconds, why)
        if not is_open:
            raise GuardrailUnavailable(
                f"The guardrail {name} cannot look at this {what} now, and nothing passes without it; try again later."
            )

    def _note(
        self, client: GuardrailClient, when: When, result: CheckResult, seconds: float, why: str | None = None
    ) -> None:
        name = client.options.name
        self._figures.guarded[name, when, result] += 1
        checked = next((each for each in self._way.checked if (each.guardrail, each.when) == (name, when)), None)
        if checked is None:
            checked = Checked(name, when, result)
            self._way.checked = [*self._way.checked, checked]
        checked.result, checked.why = result, why
        checked.times, checked.seconds = checked.times + 1, checked.seconds + seconds

    def _replaced(self, client: GuardrailClient, asked: Asked, body: bytes) -> tuple[Asked, bytes] | None:
        """A request in the place of another; None where it cannot be, and the other one may pass."""
        try:
            new = parse_asked(body)
        except RequestError as error:
            self._failed(client, "before", "failure", f"it gives another request: {error.message}", 0.0)
            return None
        for name in _NOT_REPLACED:
            if getattr(new, name) != getattr(asked, name):
                self._failed(client, "before", "failure", f"it gives another request, with another {name}", 0.0)
                return None
        return new, body


def _each_name_once(body: bytes) -> bytes:
    """A body without a name that is there twice: a guardrail may read one of the values, and a replica the other.

    Raises RequestError.
    """
    try:
        return msgspec.json.encode(msgspec.json.decode(body))
    except UNREADABLE as error:
        raise RequestError(f"The body cannot be read: {error}.") from None


def _refused(client: GuardrailClient, what: str, reason: str) -> ContentRefused:
    said = reason.strip()[:MOST_REASON].rstrip(".")
    return ContentRefused(f"The guardrail {client.options.name} refuses this {what}{f': {said}' if said else ''}.")


def _now() -> float:
    return asyncio.get_running_loop().time()
