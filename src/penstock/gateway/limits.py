"""What tenants may use by the minute: each request reserves it before it is sent, and settles what it has used."""

from collections.abc import Sequence
from math import ceil, inf

from penstock.access.allowances import Allowances
from penstock.access.errors import LargerThanLimit, TooManyRequests
from penstock.access.tenants import Tenant
from penstock.core.usage import Used
from penstock.gateway.exchange import Headers
from penstock.metering.lengths import AnswerLengths
from penstock.metering.meters import Charge, Meter, Refusal, Reservation
from penstock.metering.window import SLOTS

MINUTE = 60.0
# What answers no prompt.
_NO_TOKENS = frozenset(("/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v1/responses/input_tokens"))
_NO_ANSWERS = _NO_TOKENS | {"/v1/embeddings"}
# Seconds after which a client comes back that waits for its own requests, or for a budget: nothing says when.
_UNKNOWN_SECONDS = 1


class Spending:
    """What one request has reserved, until it is settled.

    Attributes:
        headers: what its client is told.
    """

    def __init__(self, limits: "Limits", tenant: Tenant, reservation: Reservation, most: float) -> None:
        self._limits, self._tenant, self._reservation = limits, tenant, reservation
        # What its answer may have; where it has none, nothing is learnt of others.
        self._most = most
        self.headers = told(reservation.charges, reservation.used)

    def settle(self, used: Used | None, *, sent: bool, answered: bool) -> None:
        """What it has used, None for no tokens; whether it was sent to a replica at all, and answered to the end."""
        tokens = 0 if used is None else used.prompt + used.output
        amounts = {"requests": int(sent), "tokens": tokens, "running": 0}
        reservation = self._reservation
        self._limits.allowances.settle(
            self._tenant.name, reservation, [amounts[meter.unit] for meter, _ in reservation.charges]
        )
        if answered and used is not None and used.output < self._most:
            self._limits.lengths.observe(self._tenant.name, used.output)


class Limits:
    """The limits of all tenants."""

    def __init__(self, allowances: Allowances) -> None:
        self.allowances = allowances
        self.lengths = AnswerLengths()

    async def admit(self, tenant: Tenant, path: str, prompt: int, most: int | None) -> Spending | None:
        """Reserve what a request may use: its prompt, and an answer of `most` tokens or of its tenant's usual length.

        None where the tenant has no limits. Raises TooManyRequests, LargerThanLimit.
        """
        charges = self._charges(tenant, path, prompt, most)
        if not charges:
            return None
        found = await self.allowances.reserve(tenant.name, charges)
        if isinstance(found, Refusal):
            raise _too_many(found, charges)
        return Spending(self, tenant, found, 0 if path in _NO_ANSWERS else inf if most is None else most)

    def _charges(self, tenant: Tenant, path: str, prompt: int, most: int | None) -> list[Charge]:
        owner, charges = f"key/{tenant.name}", []
        if tenant.requests_per_minute is not None:
            charges.append(Charge(Meter(owner, "requests", tenant.requests_per_minute, MINUTE), 1))
        if tenant.tokens_per_minute is not None and path not in _NO_TOKENS:
            answer = 0 if path in _NO_ANSWERS else self.lengths.expect(tenant.name, most)
            # It may be shorter than expected, so that there is always room for one whose prompt is not too long.
            answer = min(answer, max(0, tenant.tokens_per_minute - prompt))
            charges.append(Charge(Meter(owner, "tokens", tenant.tokens_per_minute, MINUTE), prompt + answer))
        if tenant.max_concurrent_requests is not None:
            charges.append(Charge(Meter(owner, "running", tenant.max_concurrent_requests), 1))
        return charges


def told(charges: Sequence[Charge], used: Sequence[int]) -> Headers:
    """The headers that say what is left (OpenAI's; a window is empty again after its length and a slot)."""
    headers = []
    for (meter, _), each in zip(charges, used, strict=True):
        if meter.seconds is None:
            continue
        left, seconds = max(0, meter.most - each), meter.seconds * (1 + 1 / SLOTS)
        for name, value in (("limit", str(meter.most)), ("remaining", str(left)), ("reset", f"{seconds:g}s")):
            headers.append((f"x-ratelimit-{name}-{meter.unit}".encode(), value.encode()))
    return headers


def _too_many(refusal: Refusal, charges: Sequence[Charge]) -> TooManyRequests | LargerThanLimit:
    meter, used, seconds = refusal
    amount = next(amount for charged, amount in charges if charged == meter)
    if meter.unit == "running":
        return TooManyRequests(
            f"{meter.most} requests with this API key are under way, and no more at a time are allowed; wait for one.",
            retry_after=_UNKNOWN_SECONDS,
        )
    if amount > meter.most:
        return LargerThanLimit(
            f"The prompt has {amount} tokens, more than the {meter.most} that this API key has in a minute; send a "
            "shorter one."
        )
    after = _UNKNOWN_SECONDS if seconds == inf else max(1, ceil(seconds))
    wanted = "" if meter.unit == "requests" else f", and this request may take {amount}"
    return TooManyRequests(
        f"This API key has {meter.most} {meter.unit} in a minute, of which {used} are used{wanted}; try again in "
        f"{after} s.",
        retry_after=after,
        headers=told([Charge(meter, amount)], [used]),
    )
