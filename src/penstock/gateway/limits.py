"""What tenants may use by the minute: each request reserves it before it is sent, and settles what it has used."""

import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from math import ceil, inf

from penstock.access.allowances import Allowances
from penstock.access.auth import too_many_at_a_time, whose
from penstock.access.errors import BudgetExceeded, LargerThanLimit, NoPrice, TooManyRequests
from penstock.access.tenants import Level, Tenant
from penstock.core.usage import Used
from penstock.gateway.abroad import Abroad
from penstock.gateway.exchange import Headers
from penstock.gateway.meters import DAY, in_billionths, meters_of
from penstock.metering.lengths import AnswerLengths
from penstock.metering.meters import Charge, Meter, Refusal, Reservation
from penstock.metering.prices import Price, Prices
from penstock.metering.window import SLOTS
from penstock.tenancy.settings import BILLIONTHS

# What answers no prompt, and what answers with no text.
NO_TOKENS = frozenset(("/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v1/responses/input_tokens"))
NO_ANSWERS = NO_TOKENS | {
    *("/v1/embeddings", "/embed", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score"),
    *("/v1/classify", "/classify", "/predict"),
}
# Seconds after which a client comes back that waits for its own requests, or for a budget: nothing says when.
_UNKNOWN_SECONDS = 1
_NOTHING = Used(0, 0, 0)
_NO_PRICE = Price(model="", input=Decimal(0), output=Decimal(0))
# Parts of a budget, from which on it is told that they are used or reserved.
SHARES = (0.5, 0.8, 0.95)
_MOST_SHARES = 10_000


class Spending:
    """What one request has reserved, until it is settled.

    Attributes:
        price: of its model; None where it has none.
        headers: what its client is told.
    """

    def __init__(
        self,
        limits: "Limits",
        tenant: Tenant,
        price: Price | None,
        reservation: Reservation | None,
        most: float,
        answers: int,
    ) -> None:
        self.price = price
        self._limits, self._tenant, self._reservation = limits, tenant, reservation
        # What each of its answers may have; where it has none, nothing is learnt of others.
        self._most, self._answers = most, answers
        self.headers = () if reservation is None else told(reservation.charges, reservation.used)

    def settle(self, used: Used | None, *, sent: bool, answered: bool, price: Price | None = None) -> int | None:
        """What it has used, None for no tokens; whether it was sent to a replica at all, and answered to the end.

        `price` is that of the provider that has answered; None: an own machine has. Returns what it costs, in
        trillionths; None where its model has no price.
        """
        price = price or self.price
        cost = None if price is None else price.cost(used or _NOTHING)
        reservation, tokens = self._reservation, 0 if used is None else used.prompt + used.output
        if reservation is not None:
            money = 0 if cost is None else in_billionths(cost)
            amounts = {"requests": int(sent), "tokens": tokens, "running": 0, "money": money}
            self._limits.allowances.settle(
                group_of(self._tenant), reservation, [amounts[meter.unit] for meter, _ in reservation.charges]
            )
        if answered and used is not None and used.output < self._most * self._answers:
            self._limits.lengths.observe(self._tenant.name, ceil(used.output / self._answers))
        return cost


class Limits:
    """The limits of all tenants.

    Args:
        counts_all: whether it is also counted what those use who have no limits.
        clock: seconds since 1970.

    Attributes:
        on_share: is told of each budget once when a part of it is used; 1.0: a request had no room in it.
    """

    def __init__(
        self,
        allowances: Allowances,
        prices: Prices | None = None,
        *,
        counts_all: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.allowances = allowances
        self.lengths = AnswerLengths()
        self.on_share: Callable[[Meter, float], None] | None = None
        self._shares: dict[str, float] = {}
        self._prices, self._counts_all, self._clock = prices or Prices(), counts_all, clock

    async def admit(
        self,
        tenant: Tenant,
        path: str,
        model: str,
        prompt: int,
        most: int | None,
        abroad: Abroad | None = None,
        *,
        answers: int = 1,
        context: int = 0,
        of_batch: bool = False,
    ) -> Spending | None:
        """Reserve what a request may use: its prompt, and answers of `most` tokens, or of its tenant's usual length.

        Of money, what it costs at the dearest of those who may answer; without `most`, each answer may fill the model's
        `context` (0: it is not known). `of_batch`: it is a line of a batch, which has a
        price of its own on own machines. None where nothing is counted. Raises TooManyRequests, LargerThanLimit,
        BudgetExceeded, NoPrice.
        """
        price = None if abroad is not None and abroad.only else self._price(tenant, path, model)
        price = price.of_batches if price is not None and of_batch else price
        prices = () if abroad is None else abroad.prices
        filling = max(0, context - prompt) if most is None else most
        prices = prices if price is None else (*prices, price)
        charges = self._charges(tenant, path, prices, prompt, most, filling, answers)
        longest = 0 if path in NO_ANSWERS else inf if most is None else most
        if not charges and not self._counts_all and not prices:
            return None
        return await self._reserve(tenant, price, charges, longest, answers)

    async def admit_again(self, tenant: Tenant) -> Spending:
        """Count a request that gets an answer which was given before: it takes no tokens, and costs nothing.

        Raises TooManyRequests.
        """
        meters = (meter for owner, bounds in tenant.levels for meter in meters_of(owner, bounds, 0))
        charges = [Charge(meter, 1) for meter in meters if meter.unit in ("requests", "running")]
        return await self._reserve(tenant, _NO_PRICE, charges, 0, 1)

    async def _reserve(
        self, tenant: Tenant, price: Price | None, charges: Sequence[Charge], longest: float, answers: int
    ) -> Spending:
        if not charges:
            return Spending(self, tenant, price, None, longest, answers)
        found = await self.allowances.reserve(group_of(tenant), charges)
        if isinstance(found, Refusal):
            if found.meter.unit == "money":
                self._reached(found.meter, 1.0)
            raise _refused(found, charges, self._clock())
        for (meter, _), used in zip(charges, found.used, strict=True):
            if meter.unit == "money" and used >= SHARES[0] * meter.most:
                self._reached(meter, max(share for share in SHARES if used >= share * meter.most))
        return Spending(self, tenant, price, found, longest, answers)

    def _reached(self, meter: Meter, share: float) -> None:
        if self.on_share is None or self._shares.get(meter.name, 0.0) >= share:
            return
        if len(self._shares) >= _MOST_SHARES:
            # Most are of periods that are over.
            self._shares.clear()
        self._shares[meter.name] = share
        self.on_share(meter, share)

    async def count_spent(self, group: str, level: Level, day: int, month: int) -> None:
        """What was spent today and in this month by the ledger, in trillionths, is used of the budgets of a level."""
        for meter in meters_of(level.owner, level.bounds, int(self._clock()) // DAY):
            if meter.unit != "money":
                continue
            used = day if meter.period.startswith("day") else month
            await self.allowances.at_least(group, meter, in_billionths(used))

    def _price(self, tenant: Tenant, path: str, model: str) -> Price | None:
        price = self._prices.of(model)
        budgets = any(level.bounds.has_budget for level in tenant.levels)
        if price is None and path not in NO_TOKENS and (budgets or self._prices):
            what = f"The model {model}" if model else "A request that names no model"
            raise NoPrice(
                f"{what} has no price at this gateway, so that its cost cannot be counted; the operator can "
                "give one in [[price]], or name the model in free."
            )
        return price

    def _charges(
        self,
        tenant: Tenant,
        path: str,
        prices: Sequence[Price],
        prompt: int,
        most: int | None,
        filling: int,
        answers: int,
    ) -> list[Charge]:
        counts = path not in NO_TOKENS
        expected = 0 if path in NO_ANSWERS else self.lengths.expect(tenant.name, most) * answers
        # Of money, what an answer may have at most is reserved: budgets hold, whatever answers are like.
        dearest = 0 if path in NO_ANSWERS else max(expected, filling * answers)
        costs = [in_billionths(price.cost(Used(prompt, 0, dearest))) for price in prices]
        day, charges = int(self._clock()) // DAY, []
        for owner, bounds in tenant.levels:
            for meter in meters_of(owner, bounds, day):
                if meter.unit in ("requests", "running"):
                    charges.append(Charge(meter, 1))
                elif not counts:
                    continue
                elif meter.unit == "tokens":
                    # It may be shorter than expected, so that there is room for one whose prompt is not too long.
                    charges.append(Charge(meter, prompt + min(expected, max(0, meter.most - prompt))))
                elif costs:
                    charges.append(Charge(meter, max(costs)))
        return charges


def group_of(tenant: Tenant) -> str:
    """What all meters of a tenant have in common, so that a store counts them in one step."""
    return tenant.organisation or tenant.name


def told(charges: Sequence[Charge], used: Sequence[int]) -> Headers:
    """The headers that say what is left (OpenAI's), of the level that has least of it.

    A window is empty again after its length and a slot.
    """
    least: dict[str, tuple[int, Meter]] = {}
    for (meter, _), each in zip(charges, used, strict=True):
        left = max(0, meter.most - each)
        if meter.seconds is not None and (meter.unit not in least or left < least[meter.unit][0]):
            least[meter.unit] = left, meter
    headers = []
    for unit, (left, meter) in least.items():
        assert meter.seconds is not None, "totals have no window"
        for name, value in (("limit", meter.most), ("remaining", left), ("reset", _reset(meter.seconds))):
            headers.append((f"x-ratelimit-{name}-{unit}".encode(), f"{value}".encode()))
    return headers


@lru_cache
def _reset(seconds: float) -> str:
    return f"{seconds * (1 + 1 / SLOTS):g}s"


def _refused(
    refusal: Refusal, charges: Sequence[Charge], now: float
) -> TooManyRequests | LargerThanLimit | BudgetExceeded:
    meter, used, seconds = refusal
    amount = next(amount for charged, amount in charges if charged == meter)
    if meter.unit == "running":
        return too_many_at_a_time(meter.most, meter.owner)
    has = whose(meter.owner)
    has = f"{has[0].upper()}{has[1:]} {'has' if meter.owner.startswith('key/') else 'have'}"
    if meter.unit == "money":
        period, _, which = meter.period.partition(" ")
        return BudgetExceeded(
            f"{has} a budget of {_money(meter.most)} for the {period} {which}, of which {_money(used)} are used or "
            f"reserved, and this request may cost {_money(amount)}, by its prompt and the most tokens that its answer "
            f"may have; the next {period} begins in {max(1, ceil(meter.until - now))} s."
        )
    if amount > meter.most:
        return LargerThanLimit(f"The prompt has {amount} tokens. {has} {meter.most} in a minute; send a shorter one.")
    after = _UNKNOWN_SECONDS if seconds == inf else max(1, ceil(seconds))
    wanted = "" if meter.unit == "requests" else f", and this request may take {amount}"
    return TooManyRequests(
        f"{has} {meter.most} {meter.unit} in a minute, of which {used} are used{wanted}; try again in {after} s.",
        retry_after=after,
        headers=told([Charge(meter, amount)], [used]),
    )


def _money(billionths: int) -> str:
    return f"{Decimal(billionths) / BILLIONTHS:f}"
