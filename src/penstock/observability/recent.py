"""The accounts of requests that run, and of those that have ended lately: bounded, and each tenant's for itself."""

from collections import deque
from collections.abc import Iterator

from penstock.observability.account import Account

# The most accounts of requests that have ended; of those that failed or missed what was promised; of those that were
# not taken on; and of batches' lines.
MOST_RECENT = 1024
MOST_NOTED = 256
MOST_REFUSED = 256
MOST_LINES = 256
# The most prompts of all accounts of one kind, since one request may have very many; and the most tokens of these
# prompts where they are kept.
MOST_PROMPTS = 1 << 13
MOST_TOKENS = 1 << 21

_NOTED = ("failed", "timed_out")


class _Ring:
    """The newest of some accounts that have ended."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._accounts: deque[Account] = deque()
        self._prompts = self._tokens = 0

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts)

    def add(self, account: Account) -> list[Account]:
        """Keep one more; returns those that are kept no longer. The newest is kept, whatever it takes."""
        self._accounts.append(account)
        self._count(account, 1)
        gone = []
        while len(self._accounts) > 1 and self._is_too_much:
            gone.append(self._accounts.popleft())
            self._count(gone[-1], -1)
        return gone

    @property
    def _is_too_much(self) -> bool:
        return len(self._accounts) > self._most or self._prompts > MOST_PROMPTS or self._tokens > MOST_TOKENS

    def _count(self, account: Account, sign: int) -> None:
        self._prompts += sign * len(account.journals)
        self._tokens += sign * sum(map(len, account.prompts))


class Recent:
    """Keeps accounts.

    What was slow or failed is kept longer than what was not, so that it can still be asked for. There may be very many
    refusals and lines of batches; they do not crowd out what people wait for.

    Args:
        keep_prompts: whether prompts' tokens are kept behind their requests' ends.
    """

    def __init__(self, *, keep_prompts: bool = False) -> None:
        self.keep_prompts = keep_prompts
        self._running: dict[str, Account] = {}
        self._recent = _Ring(MOST_RECENT)
        self._noted = _Ring(MOST_NOTED)
        self._refused = _Ring(MOST_REFUSED)
        self._lines = _Ring(MOST_LINES)
        # By the request's id and by its response's; those that clients gave, by tenant.
        self._by_id: dict[str, Account] = {}
        self._by_client_id: dict[tuple[str, str], Account] = {}

    def begin(self, account: Account) -> None:
        """Remember a request that has arrived."""
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
            self._keep(self._lines, account)
        elif account.taken_on is None:
            self._keep(self._refused, account)
        elif account.outcome in _NOTED or account.missed:
            self._keep(self._noted, account)
        else:
            self._keep(self._recent, account)

    def find(self, request_id: str, tenant: str | None) -> Account | None:
        """The account of a tenant's request, by any of its ids; of any tenant's where `tenant` is None."""
        found = self._by_id.get(request_id)
        if found is not None and tenant in (None, found.tenant):
            return found
        if tenant is not None:
            return self._by_client_id.get((tenant, request_id))
        others = (account for (_, name), account in self._by_client_id.items() if name == request_id)
        return next(others, None)

    def all(self, tenant: str | None) -> list[Account]:
        """A tenant's accounts, or all tenants' where `tenant` is None; those of the newest requests first.

        By when the server got to them: when they arrived is known to a few milliseconds only.
        """
        accounts = [*self._running.values(), *self._recent, *self._noted, *self._refused, *self._lines]
        seen = [account for account in accounts if tenant in (None, account.tenant)]
        return sorted(seen, key=lambda account: account.begun, reverse=True)

    def _keep(self, ring: _Ring, account: Account) -> None:
        for gone in ring.add(account):
            self._forget(gone)

    def _forget(self, account: Account) -> None:
        self._by_id.pop(account.id, None)
        if account.response_id is not None and self._by_id.get(account.response_id) is account:
            del self._by_id[account.response_id]
        if account.client_id is not None:
            key = (account.tenant, account.client_id)
            if self._by_client_id.get(key) is account:
                del self._by_client_id[key]
