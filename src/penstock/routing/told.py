"""What a replica tells of itself, many times a second."""

from typing import Annotated

import msgspec

from penstock.core.handover import Role
from penstock.core.kv_places import KVPlaces
from penstock.routing.speed import Speed

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]


class ModelBeside(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model that a replica serves beside its first: its names, its own first, and tokens of prompt and answer."""

    models: tuple[str, ...]
    max_model_len: Count = 0


class MadeFor(msgspec.Struct, frozen=True):
    """The own name of a model, and how far a task is from what it is made for; 0: it is made for it."""

    model: str
    detour: Count = 0


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A replica at a moment.

    Attributes:
        at: seconds on a clock of its own that never goes back.
        instance: another one each time that it begins.
        why: it cannot answer now; empty where it can.
        ending: whether it takes on nothing more, and finishes what runs.
        models: that it serves; the first is its own name.
        max_model_len: tokens of a prompt and its answer; 0 where it does not say.
        beside: where it serves several, the others; their names are among `models`.
        made_for: by task (`api/made_for.py`) the model that a request gets which names none; without those that none
            of its models can do.
        running, waiting: sequences of requests that are computed, and that are not yet.
        most_running: that are computed at a time; 0 where it does not say.
        waiting_tokens: of the prompts of those that wait.
        blocks_total, blocks_used: of its KV cache; used ones belong to a running sequence.
        speed: of its steps, once measured.
        identity: others with the same give the same bits, if their weights are the same; empty where they may not.
        form: others with the same can go on from its blocks; empty where it shares no secret with any.
        reads: others with the same make the same prompts of requests; empty where it has no texts.
        kv: where it tells what changes in its cache; None where it does not.
        store: others with the same keep the same files, batches and responses; empty where it keeps them alone.
        role: "prefill": others go on behind the prompts that it computes; "decode": it goes on behind others' prompts.
        for_others: whether who asks for this state may say for which tenants its requests are.
    """

    at: float
    instance: str
    why: str = ""
    ending: bool = False
    models: tuple[str, ...] = ()
    max_model_len: Count = 0
    running: Count = 0
    most_running: Count = 0
    waiting: Count = 0
    waiting_tokens: Count = 0
    blocks_total: Count = 0
    blocks_used: Count = 0
    speed: Speed | None = None
    identity: str = ""
    form: str = ""
    reads: str = ""
    kv: KVPlaces | None = None
    store: str = ""
    role: Role = "both"
    for_others: bool = False
    beside: tuple[ModelBeside, ...] = ()
    made_for: dict[str, MadeFor] = {}

    def described(self, model: str) -> tuple[str, int]:
        """The own name of a model that it serves, and tokens of a prompt and its answer."""
        for each in self.beside:
            if model in each.models:
                return each.models[0], each.max_model_len
        return self.models[0], self.max_model_len
