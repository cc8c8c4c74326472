"""What comes for each model, and what waits: the counts that a number of replicas is decided by."""

from collections.abc import Sequence

import msgspec

from penstock.core.usage import Used
from penstock.gateway.replicas import Replicas, State
from penstock.routing.autoscaling import Counted
from penstock.routing.line import Turn
from penstock.routing.loads import Loads
from penstock.routing.speed import GUESSED, Speed


class Demand(msgspec.Struct, frozen=True):
    """What a model's replicas have to do.

    Attributes:
        model: its name.
        counted: what came for it since the gateway began.
        ready: replicas that can be asked.
        speed: of a replica, the mean of those that tell theirs, or the last one known; None: no replica has told any.
        waiting: tokens of prompts that are not computed yet, at replicas and before them.
        held: requests that wait here.
        requests: at replicas.
        held_tokens: those of `waiting` that wait here.
    """

    model: str
    counted: Counted
    ready: int
    speed: Speed | None
    waiting: float
    held: int
    requests: int
    held_tokens: float = 0.0

    def backlog(self, tokens: float) -> float:
        """Seconds that one replica would need for a number of tokens of prompts."""
        return tokens / (self.speed or GUESSED).prefill


class Demands:
    """Counts requests by their models, and tells what waits for them."""

    def __init__(self, replicas: Replicas, loads: Loads, speeds: Sequence[Speed]) -> None:
        self._replicas, self._loads, self._speeds = replicas, loads, speeds
        self._counted: dict[str, Counted] = {}
        self._known: dict[str, Speed] = {}

    def came(self, model: str | None, tokens: int) -> None:
        """A request came, of whose prompt no cache is known to have anything yet.

        Only models of replicas, or those that are expected, are counted: clients name what they like.
        """
        if model is not None and (model in self._counted or self._exists(model)):
            self._add(model, requests=1, prompt=tokens, context=tokens)

    def _exists(self, model: str) -> bool:
        return model in self._replicas.expected or any(model in each.models for each in self._replicas.all)

    def sent(self, model: str | None, tokens: int, hit: int) -> None:
        """It was sent to a replica that has a part of its prompt in its cache."""
        if model is not None and model not in self._counted and self._exists(model):
            # It came before the first replica of its model was known.
            self._add(model, requests=1, prompt=tokens, context=tokens)
        if model in self._counted and hit:
            self._add(model, prompt=-hit)

    def ended(self, model: str | None, used: Used | None, output: int | None = None) -> None:
        """It has ended, and used what its answer says, or gave that many tokens; None: nothing says how many."""
        tokens = output if used is None else used.output
        if model in self._counted and tokens is not None:
            self._add(model, outputs=1, output=tokens)

    def _add(self, model: str, **more: float) -> None:
        before = self._counted.get(model, Counted())
        changed = {name: getattr(before, name) + value for name, value in more.items()}
        self._counted[model] = msgspec.structs.replace(before, **changed)

    def told(self, turns: Sequence[Turn]) -> tuple[Demand, ...]:
        """Of each model that there is, or that requests came for; `turns` are those that wait."""
        there = dict.fromkeys((*self._replicas.expected, *self._replicas.models))
        return tuple(self._of(model, [turn for turn in turns if turn.model == model]) for model in there)

    def _of(self, model: str, turns: Sequence[Turn]) -> Demand:
        own = [each.place for each in self._replicas.machines if model in each.models and each.state == State.READY]
        if speeds := [self._speeds[place] for place in own if self._has_speed(place)]:
            self._known[model] = _mean(speeds)
        held = sum(turn.tokens for turn in turns)
        return Demand(
            model=model,
            counted=self._counted.get(model, Counted()),
            ready=len(own),
            speed=self._known.get(model),
            waiting=held + sum(self._loads.uncached[place] for place in own),
            held_tokens=held,
            held=len(turns),
            requests=sum(self._loads.requests[place] for place in own),
        )

    def _has_speed(self, place: int) -> bool:
        told = self._replicas.all[place].told
        return told is not None and told.speed is not None


def _mean(speeds: Sequence[Speed]) -> Speed:
    count = len(speeds)
    return Speed(
        prefill=sum(each.prefill for each in speeds) / count,
        decode=sum(each.decode for each in speeds) / count,
        row=sum(each.row for each in speeds) / count,
        token=sum(each.token for each in speeds) / count,
    )
