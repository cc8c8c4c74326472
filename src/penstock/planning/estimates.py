"""What a client sees of a deployment: time to the first token, time for each further one, tokens a second."""

from math import inf
from typing import Literal

import msgspec
from msgspec.structs import replace

from penstock.planning.efficiency import Efficiency
from penstock.planning.latency import Deployment, Rows, StepTime, decode_step, step_time

Loop = Literal["closed", "static", "open"]
# As the scheduler has them: pieces of a prompt for each stage, and tokens of one at least.
_PIECES, _PIECE_TOKENS = 2, 128


class Workload(msgspec.Struct, frozen=True):
    """Requests that are alike.

    Attributes:
        input_tokens, output_tokens: of a request.
        cached_tokens: of its prompt, that the prefix cache has.
        concurrency: requests at a time; in an open loop what its rate comes to.
        loop: "closed": each request that ends is followed by another; "static": all begin together, and no other comes;
            "open": they come at a rate, whatever is answered.
    """

    input_tokens: float
    output_tokens: float
    concurrency: float = 1.0
    cached_tokens: float = 0.0
    loop: Loop = "closed"

    @property
    def computed_tokens(self) -> float:
        """Of a prompt, those that are not in the cache; its last one never is."""
        return max(1.0, self.input_tokens - self.cached_tokens)

    @property
    def middle_context(self) -> float:
        """Tokens of a sequence in the middle of its output."""
        return self.input_tokens + max(1.0, self.output_tokens) / 2


class Estimate(msgspec.Struct, frozen=True):
    """Seconds, and what they come from.

    Attributes:
        ttft, tpot: means, to the first token and for each further one.
        step, prompt: a step of all decodes in the middle of their outputs, and one prompt's own computation.
    """

    ttft: float
    tpot: float
    output_tokens_per_second: float
    step: StepTime
    prompt: StepTime

    def end_to_end(self, output_tokens: float) -> float:
        """Seconds of a whole request with that many output tokens."""
        return self.ttft + self.tpot * max(0.0, output_tokens - 1)


def estimate(deployment: Deployment, efficiency: Efficiency, workload: Workload, places: float = inf) -> Estimate:
    """The means of a workload on one replica, where at most `places` requests run at a time and others wait.

    In a closed loop each decode also waits for the prompts of those that follow others: while a sequence decodes its
    output, each of the C - 1 others has its prompt computed once. Stages each have their part of the requests at a
    time, and prompts follow one another through them.
    """
    if workload.concurrency > places >= 1:
        return _waiting(estimate(deployment, efficiency, replace(workload, concurrency=places)), workload, places)
    rows, output, stages = workload.concurrency, max(1.0, workload.output_tokens), deployment.stages
    step = decode_step(deployment, efficiency, max(1.0, rows / stages), workload.middle_context)
    prompts = prompts_of(deployment, efficiency, workload)
    prompt, behind = prompts.step, prompts.behind
    own = prompts.seconds
    # Those that are computed in the same step wait for no other.
    others = max(0.0, rows - prompts.together)
    if workload.loop == "static":
        # All prompts are computed one behind the other, before anything decodes.
        ttft, tpot = own + behind * others / 2, step.seconds
        seconds = own + behind * others + tpot * (output - 1)
        return Estimate(ttft, tpot, rows * output / seconds, step, prompt)
    tpot = step.seconds + efficiency.stall * (rows - 1) * behind / output
    ttft = own + efficiency.first_layer_seconds * deployment.shape.num_layers
    if rows > 1:
        ttft += step.seconds / 2 + efficiency.burst * others * behind
    return Estimate(ttft, tpot, rows * output / (ttft + tpot * (output - 1)), step, prompt)


class Prompts(msgspec.Struct, frozen=True):
    """Prompts that are computed in one step, one in each group of devices.

    Attributes:
        seconds: of one of them, which goes through the stages in pieces.
        behind: seconds by which one prompt comes behind the one before, in the mean.
    """

    step: StepTime
    together: int
    seconds: float
    behind: float


def prompts_of(deployment: Deployment, efficiency: Efficiency, workload: Workload) -> Prompts:
    """A step of a workload's prompts: one for each group, or for each request where there are fewer."""
    together = max(1, min(deployment.groups, int(workload.concurrency)))
    prompt = workload.cached_tokens, workload.computed_tokens
    step = step_time(deployment, efficiency, Rows(chunks=(prompt,) * together))
    part, pieces = 1 / deployment.stages, 1.0
    if deployment.device.parts > 1 and deployment.stages > 1:
        # While one piece is in a stage, the next is in the stage before; the largest stage keeps all others waiting.
        part, pieces = deployment.stage_part, _pieces(deployment.stages, workload.computed_tokens)
    seconds = step.seconds * (1 + (pieces - 1) * part) / pieces
    return Prompts(step, together, seconds, step.seconds / together * part)


def _pieces(stages: int, tokens: float) -> float:
    """In how many pieces the scheduler lets a prompt go through the stages (`scheduler/stages.py`)."""
    return max(1.0, min(stages * _PIECES, tokens / _PIECE_TOKENS))


def _waiting(running: Estimate, workload: Workload, places: float) -> Estimate:
    """What those that run make of a workload that has more requests at a time.

    In a closed loop a request waits, by Little's law, for as long as the others take that are before it; of requests
    that begin together, the last wait twice as long as those in the middle.
    """
    more = workload.concurrency / places - 1
    waits = more * running.end_to_end(workload.output_tokens) * (0.5 if workload.loop == "static" else 1.0)
    return replace(running, ttft=running.ttft + waits)


def most_throughput(deployment: Deployment, efficiency: Efficiency, workload: Workload) -> float:
    """Output tokens a second where requests always wait, as many at a time as the workload has.

    Each step has a token of every request that decodes, and as many parts of prompts as keep their number: weights are
    read once for both.
    """
    rows, output, stages = workload.concurrency, max(1.0, workload.output_tokens), deployment.stages
    rows = max(1.0, rows / stages)
    step = decode_step(deployment, efficiency, rows, workload.middle_context)
    prompts = prompts_of(deployment, efficiency, workload)
    prompt = prompts.step
    # Steps of prompts that come with one of decodes.
    part = rows / output / prompts.together
    work = efficiency.together(step.reading, step.multiplying + part * prompt.multiplying)
    work += step.cache + part * (prompt.cache + prompt.attention)
    if deployment.devices > 1:
        # All wait for the slowest.
        work += efficiency.waits * work
    work += part * (prompt.messages + efficiency.chunk_seconds)
    return rows * stages / (work + step.messages + step.fixed)


def at_rate(deployment: Deployment, efficiency: Efficiency, workload: Workload, rate: float, most: float) -> Workload:
    """The workload with as many requests at a time as a rate comes to, by Little's law; at most `most` of them.

    With more at a time, a replica finishes more a second. The fewest that finish the rate are taken.
    """

    def finished(rows: float) -> float:
        told = estimate(deployment, efficiency, replace(workload, concurrency=rows))
        return rows / told.end_to_end(workload.output_tokens)

    low, high = 0.0, 1.0
    while high < most and finished(high) < rate:
        low, high = high, min(most, 2 * high)
    for _ in range(40):
        middle = (low + high) / 2
        if middle and finished(max(1.0, middle)) * min(1.0, middle) < rate:
            low = middle
        else:
            high = middle
    return replace(workload, concurrency=max(1.0, high))
