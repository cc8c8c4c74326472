"""One replica in simulated time: the scheduler that serves, with steps that take what the latency model says."""

from collections.abc import Iterable

import msgspec

from penstock.core.plan import StepPlan, StepResult
from penstock.planning.efficiency import Efficiency
from penstock.planning.latency import Deployment, Rows, step_time
from penstock.scheduler.scheduler import Scheduler
from penstock.simulation.loop import Arrival, one_token_each, play


class Served(msgspec.Struct):
    """What became of a simulated request; times are in seconds on the simulated clock.

    Attributes:
        tokens: when each output token came.
    """

    arrived: float
    prompt_tokens: int
    cached_tokens: int = 0
    tokens: list[float] = msgspec.field(default_factory=list)


class Played(msgspec.Struct):
    """A run of a replica.

    Attributes:
        requests: by the order in which they came.
        steps, busy: how many there were, and seconds that they took together.
        most_waiting, most_blocks: the longest queue, and the most blocks in use.
        preemptions: how often a sequence lost its blocks.
    """

    requests: list[Served]
    steps: int = 0
    busy: float = 0.0
    most_waiting: int = 0
    most_blocks: int = 0
    preemptions: int = 0


def rows_of(plan: StepPlan) -> Rows:
    """What a plan computes, as the latency model takes it: a row of one token is a decode."""
    decodes = context = 0
    chunks = []
    for row in plan.rows:
        if row.count == 1 and row.samples:
            decodes += 1
            context += row.start + 1
        else:
            chunks.append((float(row.start), float(row.count)))
    return Rows(float(decodes), context / decodes if decodes else 0.0, tuple(chunks))


def play_replica(
    scheduler: Scheduler, arrivals: Iterable[Arrival], deployment: Deployment, efficiency: Efficiency
) -> Played:
    """Serve requests whose outputs are as long as their `max_tokens` say; raises RequestError as the scheduler does."""
    served: dict[int, Served] = {}
    # What lies between a client and the step, and keeps no step waiting.
    later = efficiency.first_layer_seconds * deployment.shape.num_layers
    played = Played([])

    def noted() -> Iterable[Arrival]:
        for arrival in arrivals:
            request = arrival.request
            served[request.request_id] = Served(arrival.at, len(request.prompt_token_ids))
            yield arrival

    def execute(plan: StepPlan) -> StepResult:
        load = scheduler.snapshot()
        played.most_waiting = max(played.most_waiting, load.waiting)
        played.most_blocks = max(played.most_blocks, load.blocks_used)
        return one_token_each(plan, step_time(deployment, efficiency, rows_of(plan)).seconds)

    for step in play(scheduler, noted(), execute):
        played.steps += 1
        played.busy += step.ended - step.began
        for output in step.outputs:
            request = served[output.request_id]
            request.cached_tokens = output.cached_tokens or request.cached_tokens
            request.tokens += [step.ended + later] * len(output.gained.tokens)
    played.requests = list(served.values())
    played.preemptions = scheduler.snapshot().preemptions
    return played
