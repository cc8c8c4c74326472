"""What is written down of requests over HTTP: in the server's sums, and in an account of each."""

import time
from dataclasses import dataclass

from penstock.api.job import Job
from penstock.core.errors import Overloaded, PenstockError
from penstock.core.kv_policy import PolicyKind
from penstock.core.plan import FinishReason
from penstock.engine.journal import Journal
from penstock.http.error_bodies import ErrorForm
from penstock.observability.account import Account
from penstock.observability.accounts import Accounts, failed
from penstock.observability.metrics import Endpoint, Metrics, Outcome, RequestMeter, outcome_of


@dataclass(frozen=True)
class Records:
    """Where it is written down: sums of all, and accounts of each."""

    metrics: Metrics
    accounts: Accounts

    def begin(self, endpoint: Endpoint, tenant: str, arrived: float | None, client_id: str | None) -> "RequestRecord":
        """The record of the request that the running task serves, whose head came in at `arrived`, or now."""
        meter = self.metrics.begin(endpoint, arrived)
        return RequestRecord(self, meter, self.accounts.begin(endpoint, tenant, meter.arrived, client_id))


class RequestRecord:
    """Of one request.

    Attributes:
        meter: measures it for the sums.
        account: its account.
    """

    def __init__(self, records: Records, meter: RequestMeter, account: Account) -> None:
        self.meter = meter
        self.account = account
        self._records = records
        self._ended = False

    def taken_on(self, job: Job, response_id: str) -> None:
        """It is a job that runs, and has a response."""
        self.meter.accepted(job.prompt_tokens)
        begun(self.account, job)
        self._records.accounts.answered_as(self.account, response_id)

    def follow(self, journal: Journal) -> None:
        """What the engine does for it is in a journal."""
        self.meter.follow(journal)
        self.account.follow(journal)

    def finished(self, reason: FinishReason) -> None:
        """One of its samples has ended."""
        self.meter.finished(reason)
        self.account.finish_reasons.append(reason)

    def dropped(self, prompt: int, tokens: int, kind: PolicyKind) -> None:
        """Of a prompt's context, this number of tokens has been dropped so far."""
        self.meter.dropped(kind, self.account.drop(prompt, tokens))

    def failed(self, error: PenstockError, status: int) -> None:
        """It ends with an error."""
        failed(self.account, error, status)

    def refuse(self, error: PenstockError, form: ErrorForm) -> None:
        """It has ended before it was taken on."""
        outcome = outcome_of(error)
        if isinstance(error, Overloaded):
            self._records.metrics.refused[error.code] += 1
        self._judge(outcome)
        self._records.accounts.refuse(self.account, outcome, error, form.status(error))

    def end(self, outcome: Outcome, *, answered: bool) -> None:
        """It has ended; only the first call counts. `answered` says whether its client was sent a status."""
        if self._ended:
            return
        self._judge(outcome)
        if outcome == "cancelled" and not answered:
            self.account.status = None
        self._records.accounts.end(self.account, outcome)

    def _judge(self, outcome: Outcome) -> None:
        self._ended = True
        self.meter.end(outcome)
        self.account.judged(self.meter.ttft, self.meter.missed)


def begun(account: Account, job: Job) -> None:
    """The account's request was taken on as a job."""
    account.taken_on = time.monotonic()
    account.prompts, account.prompt_tokens = job.prompts, job.prompt_tokens
    account.samples, account.stream = job.params[0].n if job.params else 1, job.stream
    account.kv_policy = job.kv_policy
    account.user, account.metadata, account.ignored = job.user, job.metadata, job.ignored
