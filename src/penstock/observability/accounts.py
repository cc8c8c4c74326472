"""The accounts of one server's requests: they are begun, ended, written to the log, and explained."""

import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from penstock.core.errors import PenstockError
from penstock.engine.interface import EngineClient, model_name
from penstock.engine.journal import Mark
from penstock.observability.account import Account
from penstock.observability.explain.explain import Decode, Figures, cause_of, explain, summarize
from penstock.observability.explain.explanation import Explanation, RequestSummary
from penstock.observability.metrics import Endpoint, Outcome
from penstock.observability.recent import Recent
from penstock.observability.refusals import RefusalLog
from penstock.observability.request_ids import REQUEST_ID, new_request_id
from penstock.observability.spans import Serving, TraceSpan, trace_of
from penstock.observability.tracing import Tracing

logger = logging.getLogger("penstock.server")


class Accounts:
    """Keeps and tells what became of requests.

    Args:
        engine: what engines have done.
        recent: where accounts are kept.
        text: makes text of tokens; None where nothing does.
        tracing: makes traces of requests that have ended; None where no traces are wanted.

    Attributes:
        figures: of the model and the machine, once they are known.
        tracing: as it was given.
    """

    def __init__(
        self,
        engine: EngineClient,
        recent: Recent | None = None,
        text: Decode | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._engine = engine
        self._recent = recent or Recent()
        self._text = text
        self.tracing = tracing
        self._refusals = RefusalLog()
        self.figures = Figures()

    def begin(self, endpoint: Endpoint, tenant: str, arrived: float, client_id: str | None = None) -> Account:
        """The account of the request that the running task serves, whose head came in at `arrived`."""
        created = time.time() - (time.monotonic() - arrived)
        account = Account(REQUEST_ID.get() or new_request_id(), endpoint, tenant, arrived, created, client_id=client_id)
        self._recent.begin(account)
        return account

    def begin_line(self, endpoint: Endpoint, tenant: str) -> Account:
        """The account of a request in a batch, which the running task serves, under an id of its own."""
        account = Account(new_request_id(), endpoint, tenant, line=True)
        REQUEST_ID.set(account.id)
        self._recent.begin(account)
        return account

    def answered_as(self, account: Account, response_id: str) -> None:
        """It is known which response the request gets."""
        self._recent.answered_as(account, response_id)

    def end(self, account: Account, outcome: Outcome) -> None:
        """The request has ended; only the first call counts."""
        if self._end(account, outcome):
            self._trace(account)
            if not account.line:
                self._log(account)

    def refuse(self, account: Account, outcome: Outcome, error: PenstockError, status: int) -> None:
        """The request has ended with an error before it was taken on."""
        failed(account, error, status)
        if self._end(account, outcome):
            others = self._refusals.refused(error, time.monotonic())
            if others is not None:
                self._trace(account)
                self._log(account, others)

    def _end(self, account: Account, outcome: Outcome) -> bool:
        if account.outcome is not None:
            return False
        account.end(outcome)
        self._recent.end(account)
        return True

    def _trace(self, account: Account) -> None:
        if self.tracing is not None:
            make = partial(_trace_of, account, self._now(), self.figures, model_name(self._engine))
            self.tracing.ended(account.caller, make)

    def _log(self, account: Account, others: str = "") -> None:
        if logger.isEnabledFor(logging.INFO):
            _log(account, cause_of(account, self._now(), self.figures), others)

    def explain(self, request_id: str, tenant: str | None) -> Explanation | None:
        """Why a tenant's request took as long as it did; any tenant's, for the operator, where `tenant` is None."""
        account = self._recent.find(request_id, tenant)
        if account is None:
            return None
        explained = explain(account, self._now(), self.figures, self._text, operator=tenant is None)
        return replace(explained, model=model_name(self._engine))

    def all(self, tenant: str | None) -> list[Account]:
        """A tenant's accounts, or all tenants' where `tenant` is None; those of the newest requests first."""
        return self._recent.all(tenant)

    def summary(self, account: Account, *, operator: bool) -> RequestSummary:
        """An account in short. `operator`: it is told whose it is.

        Made once for a request that has ended: each takes a tenth of a millisecond, and streams wait.
        """
        summary = account.summary or summarize(account, self._now(), self.figures)
        if account.ended is not None:
            account.summary = summary
        return replace(summary, tenant=account.tenant if operator else None, model=model_name(self._engine))

    def _now(self) -> Mark:
        return Mark(time.monotonic(), self._engine.totals)


def listed(every: Sequence[Accounts], tenant: str | None, limit: int, *, slowest: bool) -> list[RequestSummary]:
    """The newest requests of a tenant, or of all, or those that took longest; `every` has those to each model."""
    now = time.monotonic()
    found = [(account, accounts) for accounts in every for account in accounts.all(tenant)]
    if slowest:
        found.sort(key=lambda each: each[0].arrived - (each[0].ended or now))
    else:
        found.sort(key=lambda each: each[0].begun, reverse=True)
    return [accounts.summary(account, operator=tenant is None) for account, accounts in found[:limit]]


def failed(account: Account, error: PenstockError, status: int) -> None:
    """The request ends with an error."""
    account.code, account.message, account.status = error.code, error.message, status


def _log(account: Account, cause: str, others: str) -> None:
    """One line for a request; whatever reads JSON gets its figures by name."""
    assert account.ended is not None
    seconds = account.ended - account.arrived
    fields: dict[str, Any] = {
        "endpoint": account.endpoint,
        "outcome": account.outcome,
        "status": account.status,
        "response_id": account.response_id,
        "client_id": account.client_id,
        "tenant": account.tenant,
        "user": account.user,
        "metadata": account.metadata,
        "ignored": list(account.ignored),
        "prompt_tokens": account.prompt_tokens,
        "output_tokens": account.output_tokens,
        "seconds": _rounded(seconds),
        "queue_seconds": _rounded(account.queue_seconds),
        "time_to_first_token": _rounded(account.time_to_first_token),
        "missed": list(account.missed),
        "cause": cause,
        "error": account.code,
    }
    named = "".join(
        f", {name} {value!r}"
        for name, value in (
            ("client id", account.client_id),
            ("tenant", account.tenant),
            ("user", account.user),
            ("metadata", account.metadata),
            ("ignored", ", ".join(account.ignored)),
        )
        if value
    )
    text = f"{account.response_id or account.endpoint + ' request'} {account.outcome}: "
    if account.code is not None:
        text += f"{account.status} {account.message} "
    if account.taken_on is not None:
        text += f"{account.prompt_tokens} prompt tokens, {account.output_tokens} output tokens, "
    logger.info("%s%.3f s, most of it %s%s%s", text, seconds, cause, named, others, extra={"fields": fields})


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _trace_of(account: Account, now: Mark, figures: Figures, model: str | None, serving: Serving) -> TraceSpan:
    return trace_of(account, explain(account, now, figures, operator=True), model, serving)
