"""The accounts of requests that run, and of those that have ended lately: bounded, and each tenant's for itself."""

from collections import deque

from penstock.observability.account import Account

# Of requests that have ended; of those that failed or missed what was promised; of those that were not taken on; of
# batches' lines.
MOST_RECENT = 1024
MOST_NOTED = 256
MOST_REFUSED = 256
MOST_LINES = 256

_NOTED = ("failed", "timed_out")


class Recent:
    """Keeps accounts.

    What was slow or failed is kept longer than what was not, so that it can still be asked for; refusals and lines of
    batches, of which there may be very many, do not crowd out what people wait for.

    Args:
        keep_prompts: whether prompts' tokens are kept behind their requests' ends.
    """

    def __init__(self, *, keep_prompts: bool = False) -> None:
        self.keep_prompts = keep_prompts
        self._running: dict[str, Account] = {}
        self._recent: deque[Account] = deque()
        self._noted: deque[Account] = deque()
        self._refused: deque[Account] = deque()
        self._lines: deque[Account] = deque()
        # By the request's id and by its response's; those that clients gave, by tenant.
        self._by_id: dict[str, Account] = {}
        self._by_client_id: dict[tuple[str, str], Account] = {}

    def begin(self, account: Account) -> None:
        """A request has arrived."""
        self._running[account.id] = self._by_id[account.id] = account
        if account.client_id is not None:
            self._by_client_id[account.tenant, account.client_id] = account

    def answered_as(self, account: Account, response_id: str) -> None:
        """It is known which response it gets."""
        account.response_id = response_id
        self._by_id[response_id] = account

    def end(self, account: Account) -> None:
        """A request has ended, as its account says."""
        if self._running.pop(account.id, None) is None:
            return
        if not self.keep_prompts:
            account.prompts = []
        if account.line:
            self._keep(self._lines, account, MOST_LINES)
        elif account.taken_on is None:
            self._keep(self._refused, account, MOST_REFUSED)
        elif account.outcome in _NOTED or account.missed:
            self._keep(self._noted, account, MOST_NOTED)
        else:
            self._keep(self._recent, account, MOST_RECENT)

    def find(self, request_id: str, tenant: str | None) -> Account | None:
        """The account of a tenant's request, by any of its ids; of anybody's where `tenant` is None."""
        found = self._by_id.get(request_id)
        if found is not None and tenant in (None, found.tenant):
            return found
        if tenant is not None:
            return self._by_client_id.get((tenant, request_id))
        others = (account for (_, name), account in self._by_client_id.items() if name == request_id)
        return next(others, None)

    def all(self, tenant: str | None) -> list[Account]:
        """A tenant's accounts, or everybody's where `tenant` is None; those of the newest requests first."""
        accounts = [*self._running.values(), *self._recent, *self._noted, *self._refused, *self._lines]
        seen = [account for account in accounts if tenant in (None, account.tenant)]
        return sorted(seen, key=lambda account: account.arrived, reverse=True)

    def _keep(self, ring: deque[Account], account: Account, most: int) -> None:
        ring.append(account)
        if len(ring) > most:
            self._forget(ring.popleft())

    def _forget(self, account: Account) -> None:
        self._by_id.pop(account.id, None)
        if account.response_id is not None and self._by_id.get(account.response_id) is account:
            del self._by_id[account.response_id]
        if account.client_id is not None:
            key = (account.tenant, account.client_id)
            if self._by_client_id.get(key) is account:
                del self._by_client_id[key]
