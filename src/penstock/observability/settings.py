"""What a server's figures are read with: service levels, cost, and the configuration that they depend on."""

import math

import msgspec

from penstock.configuration.options import LONGEST_TARGET_ITL
from penstock.configuration.slo import Slo
from penstock.core.config import EngineConfig, Reason
from penstock.core.errors import ConfigurationError
from penstock.observability.stats import Settings

_MOST_COST = 1e9
# Steps aim for this share of a service level: some take longer than they should, and their tokens have to be sent.
AIM = 0.85


class FigureOptions(msgspec.Struct, frozen=True):
    """As the user gave them.

    Attributes:
        slo: what requests are judged by; None: nothing.
        cost_per_hour: of the machine, in any currency.
    """

    slo: Slo | None = None
    cost_per_hour: float | None = None

    def check(self) -> "FigureOptions":
        """Itself. Raises ConfigurationError where the cost can be none."""
        cost = self.cost_per_hour
        if cost is not None and not (math.isfinite(cost) and 0 < cost <= _MOST_COST):
            raise ConfigurationError(
                f"--cost-per-hour is {cost:g}; it must be more than 0 and at most {_MOST_COST:g}, in your currency."
            )
        return self

    def target_itl(self, asked: float | None) -> float | None:
        """What the engine's steps aim for: what was asked for, else somewhat less than the service level."""
        if asked is not None or self.slo is None or self.slo.itl is None:
            return asked
        return min(AIM * self.slo.itl, LONGEST_TARGET_ITL)

    @property
    def reasons(self) -> list[Reason]:
        """The settings, and why they have their values."""
        judged = Reason("service levels", "none", "requests are not judged, and there is no goodput")
        if self.slo is not None:
            judged = Reason("service levels", str(self.slo), "as asked; requests that meet all of them are good")
        cost = Reason("cost per hour", "unknown", "no cost per token is told")
        if self.cost_per_hour is not None:
            cost = Reason("cost per hour", f"{self.cost_per_hour:g}", "as asked")
        return [judged, cost]

    def settings(self, config: EngineConfig, max_queued_requests: int) -> Settings:
        """All that figures are read with."""
        scheduler = config.scheduler
        return Settings(
            max_model_len=scheduler.max_model_len,
            max_num_seqs=scheduler.max_num_seqs,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            target_itl=scheduler.target_itl,
            block_size=config.cache.spec.block_size,
            prefix_caching=config.cache.prefix_caching,
            threads=config.threads,
            quantization=config.model.quantization,
            dtype=config.model.dtype,
            max_queued_requests=max_queued_requests,
            slo=None if self.slo is None else {str(name): limit for name, limit in self.slo.limits().items()},
            cost_per_hour=self.cost_per_hour,
            simulated=None if config.simulated is None else config.simulated.on,
            role=None if config.cache.handover is None else config.cache.handover.role,
        )
