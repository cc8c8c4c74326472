"""Fleets too large to be played request by request, as a flow: all replicas alike, requests as a rate.

A replica decodes n sequences at a time. Requests enter it at a rate a, each with a step that also computes its prompt,
or several where the prompt is longer than a step's budget. Between them are steps that only decode. Where requests
enter faster than that, each step has the prompts of all that entered during the one before, up to its budget. So a
token takes the mean of such steps, and n follows dn/dt = a - n / (seconds that an output takes): a fluid limit as in
Kurtz (1970), of the scheduler's behaviour. What is left out is chance: queues of replicas that are not full, and so
percentiles.
"""

from collections.abc import Callable, Sequence
from math import ceil

import msgspec

from penstock.planning.efficiency import Efficiency
from penstock.planning.latency import Deployment, Rows, step_time

# Moments of the time in which the rate is taken not to change; and of an output's own time at least.
_STEPS_AN_OUTPUT = 20


class Moment(msgspec.Struct, frozen=True):
    """The fleet at a time.

    Attributes:
        at: seconds.
        rate: requests that come a second.
        running, waiting: requests that are served, and that wait for a place, over all replicas.
        ttft, tpot: seconds; of requests that come now, and of those that run.
        output_tokens_per_second: of all replicas.
    """

    at: float
    rate: float
    running: float
    waiting: float
    ttft: float
    tpot: float
    output_tokens_per_second: float


class Flow(msgspec.Struct, frozen=True):
    """A fleet and its requests, which are alike.

    Attributes:
        places: requests that a replica runs at a time.
        budget: tokens of a step.
    """

    deployment: Deployment
    efficiency: Efficiency
    replicas: int
    places: int
    prompt: float
    output: float
    budget: int = 2048

    def step(self, running: float, prompt: float = 0.0, start: float = 0.0) -> float:
        """Seconds of a step of a replica with that many sequences, and maybe a part of a prompt."""
        context = self.prompt + self.output / 2
        chunks = ((start, prompt),) if prompt else ()
        return step_time(self.deployment, self.efficiency, Rows(running, context, chunks)).seconds

    def prompt_steps(self, running: float) -> list[float]:
        """Seconds of each of the steps in which a prompt is computed."""
        room = max(1.0, self.budget - running)
        count = ceil(self.prompt / room)
        part = self.prompt / count
        return [self.step(running, part, number * part) for number in range(count)]

    def most(self, running: float) -> float:
        """Requests a second whose prompts a replica can compute beside those that it decodes."""
        together = max(1.0, self.budget - running) / self.prompt
        if together < 1:
            return 1.0 / sum(self.prompt_steps(running))
        return together / self.step(running, together * self.prompt)

    def _crowded(self, running: float, entering: float) -> float:
        """Seconds of a step, where each has the prompts of all that entered during the one before."""
        low, high = 1.0, max(1.0, (self.budget - running) / self.prompt)
        for _ in range(30):
            prompts = (low + high) / 2
            # More prompts in a step make it longer, but not by as much as they are more.
            low, high = (
                (prompts, high) if prompts / self.step(running, prompts * self.prompt) < entering else (low, prompts)
            )
        return self.step(running, high * self.prompt)

    def figures(self, running: float, entering: float) -> tuple[float, float]:
        """TTFT and TPOT in seconds of a replica that requests enter at a rate, at most `most`."""
        mixed, alone = self.prompt_steps(running), self.step(max(1.0, running))
        later = self.efficiency.first_layer_seconds * self.deployment.shape.num_layers
        if len(mixed) == 1 and entering * mixed[0] > 1:
            crowded = self._crowded(running, entering)
            return 1.5 * crowded + later, crowded
        # Of each second, what prompts leave to steps that only decode.
        left = max(0.0, 1.0 - entering * sum(mixed))
        tokens = entering * len(mixed) + left / alone
        # A request that comes waits for half of a step, where one is computed.
        busy = min(1.0, running + entering * sum(mixed))
        return sum(mixed) + busy * alone / 2 + later, 1.0 / tokens

    def play(self, rate: Callable[[float], float], seconds: float, moments: int) -> list[Moment]:
        """What becomes of requests that come at a rate, which changes in time, from an empty fleet on."""
        running = waiting = now = 0.0
        found: list[Moment] = []
        while now < seconds:
            arriving = rate(now) / self.replicas
            most = self.most(running)
            outputs = max(1.0, self.output - 1) * self.figures(running, min(arriving, most))[1]
            step = min(outputs / _STEPS_AN_OUTPUT, seconds / moments)
            ending = running / outputs
            places = max(0.0, self.places - running) / step + ending
            entering = min(arriving + waiting / step, most, places)
            waiting = max(0.0, waiting + (arriving - entering) * step)
            running = max(0.0, running + (entering - ending) * step)
            now += step
            if now * moments / seconds >= len(found) + 1:
                found.append(self._moment(now, rate(now), running, waiting, entering))
        return found

    def _moment(self, now: float, rate: float, running: float, waiting: float, entering: float) -> Moment:
        ttft, tpot = self.figures(running, entering)
        # Little's law for those that have no token yet.
        prompts = entering * ttft
        finishing = running / (max(1.0, self.output - 1) * tpot)
        return Moment(
            at=now,
            rate=rate,
            running=(running + prompts) * self.replicas,
            waiting=waiting * self.replicas,
            ttft=ttft + (waiting / entering if entering else 0.0),
            tpot=tpot,
            output_tokens_per_second=finishing * self.output * self.replicas,
        )


def mean(moments: Sequence[Moment], figure: Callable[[Moment], float]) -> float:
    """Of a figure over the second half of the moments, when a fleet that began empty has filled."""
    later = moments[len(moments) // 2 :]
    return sum(map(figure, later)) / len(later)
