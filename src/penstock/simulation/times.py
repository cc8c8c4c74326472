"""How long the steps of plans take on a deployment, by the latency model."""

import random
from collections.abc import Sequence
from functools import lru_cache
from math import sqrt

from penstock.core.plan import StepPlan
from penstock.planning.efficiency import Efficiency
from penstock.planning.latency import Deployment, Rows, step_time
from penstock.routing.speed import Speed


class StepTimes:
    """Seconds of steps.

    A step that only decodes takes longer in proportion to the tokens that its rows see, unless layers have a window. So
    the two numbers of that line are kept for each number of rows.

    Args:
        varied: single steps as multiples of what the model says, each as likely, 1 in the mean; without any, all take
            just that.
        seed: of the random numbers by which they vary.

    Attributes:
        after: seconds that lie between the end of a step and the client, and keep no step waiting.
    """

    def __init__(
        self, deployment: Deployment, efficiency: Efficiency, varied: Sequence[float] = (), seed: int = 0
    ) -> None:
        self._deployment, self._efficiency = deployment, efficiency
        self._linear = all(layer.attention.window is None for layer in deployment.shape.layers)
        self._line = lru_cache(maxsize=None)(self._line_of)
        self._varied, self._random = varied, random.Random(seed)
        self.after = efficiency.first_layer_seconds * deployment.shape.num_layers

    def of(self, plan: StepPlan) -> tuple[float, float]:
        """Seconds of a plan's first step, and by how much each of its further ones is longer than the one before."""
        decodes = len(plan.rows)
        if self._linear and plan.num_tokens == decodes and all(row.samples for row in plan.rows):
            fixed, each = self._line(decodes)
            return fixed + each * (sum([row.before for row in plan.rows]) / decodes + 1), each
        return step_time(self._deployment, self._efficiency, rows_of(plan)).seconds, 0.0

    def chance(self, steps: int) -> float:
        """By which to multiply the time of a number of steps that follow one another, anew for each call.

        Each of them varies by itself, so that together they vary less.
        """
        if not self._varied:
            return 1.0
        return 1.0 + (self._random.choice(self._varied) - 1.0) / sqrt(steps)

    def speed(self, chunk: int) -> Speed:
        """How fast a replica is whose steps compute up to `chunk` tokens of prompts."""
        prompts = step_time(self._deployment, self._efficiency, Rows(0.0, 0.0, ((0.0, float(chunk)),))).seconds
        (one, token), (two, _) = self._line(1), self._line(2)
        return Speed(chunk / prompts, one, two - one, token)

    def _line_of(self, decodes: int) -> tuple[float, float]:
        """Seconds of a step of that many decodes with nothing in the cache, and for each token that all of them see."""
        fixed, one = (
            step_time(self._deployment, self._efficiency, Rows(float(decodes), context)).seconds for context in (0, 1)
        )
        return fixed, one - fixed


def rows_of(plan: StepPlan) -> Rows:
    """What a plan's first step computes, as the latency model takes it: a row of one token is a decode."""
    decodes = context = 0
    chunks = []
    for row in plan.rows:
        if row.count == 1 and row.samples:
            decodes += 1
            context += row.before + 1
        else:
            chunks.append((float(row.before), float(row.count)))
    return Rows(float(decodes), context / decodes if decodes else 0.0, tuple(chunks))
