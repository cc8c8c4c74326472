"""What is to be measured: the options of one measurement, checked."""

from typing import Any

import msgspec

from penstock.bench.load.arrivals import Arrivals, Closed, Open, Replay, check_arrivals
from penstock.bench.load.traces import check_length_scale
from penstock.bench.load.workload import Shape
from penstock.configuration.slo import Slo
from penstock.core.errors import ConfigurationError


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement; whatever can be said of its repetition is here, and the API key is not.

    Attributes:
        url: of the server.
        model: to ask for; None is the first that the server lists.
        endpoint: completions or chat.
        prompts: ids or text, for random content.
        token_ids: random ids are from the first to before the second.
        stages: what is measured, one after another.
        find_rate: look for the largest rate that meets `slo`, from the only stage's on.
        shape: of random conversations; its output lengths are those of a dataset that has none, too.
        dataset, trace: files, instead of random conversations.
        length_scale: factor of a trace's lengths.
        requests, seconds: most conversations of each stage, and until when they begin.
        warmup: conversations that nothing is told of, before the first stage.
        cancel: share of requests that their client leaves.
        timeout: seconds that a request has.
    """

    url: str
    model: str | None = None
    endpoint: str = "completions"
    prompts: str = "ids"
    token_ids: tuple[int, int] = (100, 1000)
    stages: tuple[Arrivals, ...]
    find_rate: bool = False
    shape: Shape
    dataset: str | None = None
    trace: str | None = None
    length_scale: float = 1.0
    requests: int | None = None
    seconds: float | None = None
    think_time: float = 0.0
    warmup: int = 0
    slo: Slo | None = None
    cancel: float = 0.0
    timeout: float = 600.0
    temperature: float = 0.0
    ignore_eos: bool = False
    extra: dict[str, Any] = {}
    seed: int = 0

    @property
    def is_sweep(self) -> bool:
        """Whether several rates are compared, so that one which is too much may be left early."""
        return self.find_rate or len(self.stages) > 1


def check_plan(plan: Plan) -> None:
    """Raise ConfigurationError where options do not go together."""
    for stage in plan.stages:
        check_arrivals(stage)
    replays = any(isinstance(stage, Replay) for stage in plan.stages)
    random = plan.dataset is None and plan.trace is None
    low, high = plan.token_ids
    refusals = {
        "--dataset and --trace are both workloads; give one.": plan.dataset is not None and plan.trace is not None,
        "--find-rate needs --slo, such as --slo ttft=500ms,tpot=50ms.": plan.find_rate and plan.slo is None,
        "--find-rate begins at one --rate; give one, or none to begin at 1 a second.": plan.find_rate
        and not (len(plan.stages) == 1 and isinstance(plan.stages[0], Open)),
        "--time-scale is for the times of a --trace; without one, say --rate or --concurrency.": replays
        and plan.trace is None,
        "--length-scale is for a --trace; give the lengths that you want with --input-len and --output-len.": (
            plan.length_scale != 1 and plan.trace is None
        ),
        "--turns and --prefix-len are for random conversations, without --dataset and --trace.": not random
        and (plan.shape.turns > 1 or plan.shape.prefix > 0),
        "/v1/chat/completions takes no token ids; leave --prompts out, or say --prompts text.": plan.endpoint == "chat"
        and plan.prompts == "ids",
        "A later turn contains the answer before it, which is text; --turns needs --prompts text.": plan.shape.turns > 1
        and plan.prompts == "ids",
        "--think-time is between turns; say how many with --turns.": plan.think_time > 0 and plan.shape.turns == 1,
        f"--cancel {plan.cancel:g} is no share of the requests; 0.1 is every tenth.": not 0 <= plan.cancel <= 1,
        f"--token-ids {low}-{high - 1} has no ids; write the first and the last.": not 0 <= low < high <= 1 << 31,
    }
    for sentence, refused in refusals.items():
        if refused:
            raise ConfigurationError(sentence)
    check_length_scale(plan.length_scale)


def describe(arrivals: Arrivals) -> str:
    """How requests come, in a few words."""
    match arrivals:
        case Closed(concurrency):
            return f"{concurrency} at a time"
        case Open(rate, burstiness):
            kind = "" if burstiness == 1 else f", burstiness {burstiness:g}"
            return f"{rate:.4g}/s{kind}"
        case Replay(scale):
            return "the trace's times" + ("" if scale == 1 else f" × {scale:g}")


def load_of(arrivals: Arrivals) -> float:
    """How much comes, as a number that stages can be ordered by."""
    match arrivals:
        case Closed(concurrency):
            return float(concurrency)
        case Open(rate, _):
            return rate
        case Replay(scale):
            return 1 / scale
