"""What one seed puts into a simulated world: its engine, what its users ask for, and what goes wrong."""

import hashlib
import random
from dataclasses import dataclass, field, replace
from typing import Literal

from penstock.core.config import SchedulerConfig
from penstock.core.kv import KVSpec
from penstock.core.request import BACKGROUND_PRIORITY, KeptPrefix, Standing
from penstock.core.sampling import SamplingParams
from penstock.core.vectors import Pooling
from support.made_up_model import kv_spec
from support.world_manners import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    Front,
    Manner,
    front,
    language,
    manner,
    standing,
)

CONTEXT = 96
EOS = tuple(range(0, 997, 40))


@dataclass
class Job:
    """One user's request, how the user behaves, and what came of it.

    Attributes:
        arrives: when, in seconds.
        reading: pause of the reader after each output.
        patience: seconds after which the reader leaves; None for one that stays. `outputs_wanted` likewise.
        poison: when it ends every engine that it is given to: as it is taken, or computed; None where it does not.
        manner: how it comes over HTTP; None for a direct user of the engine.
        more: further prompts of the same request.
        outcome, ended: how and when it ended for its user, once it has.
        tokens, finishes, texts, scores, vector: what its user got, by choice. `tokens` is None where the API has none.
    """

    name: int
    prompt: list[int]
    params: SamplingParams
    standing: Standing
    keep: tuple[KeptPrefix, ...]
    pooling: Pooling | None
    arrives: float
    reading: float
    patience: float | None
    outputs_wanted: int | None
    poison: Literal["taken", "computed"] | None = None
    manner: Manner | None = None
    more: list[list[int]] = field(default_factory=list)
    outcome: str | None = None
    ended: float | None = None
    tokens: dict[int, list[int]] | None = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    finishes: dict[int, str] = field(default_factory=dict)
    scores: list[tuple[int, float] | None] | None = None
    vector: bytes | None = None
    cached_tokens: int = 0

    @property
    def prompts(self) -> list[list[int]]:
        """All of them."""
        return [self.prompt, *self.more]

    @property
    def mark(self) -> int | None:
        """The seed of its request, by which it is known in the engine; those for vectors have none of their own."""
        return 0 if self.pooling is not None else self.params.seed


@dataclass(frozen=True)
class Faults:
    """How often what goes wrong: chances per step of the engine, unless said otherwise.

    Attributes:
        deaths: most ends of an engine that chance brings about.
        killed, silenced: it ends before a step, or after one whose outputs nobody gets.
        raised: the executor raises.
        starved: the pool cannot be asked for memory any more.
        hangs: it computes no more, and does not say so.
        bad_rows: a row's result is an error.
        stillborn: chance per start that it fails.
        withheld: chance per step that part of the pool is refused for a while.
        jumps: how often time jumps ahead, altogether.
    """

    deaths: int
    killed: float
    silenced: float
    raised: float
    starved: float
    hangs: float
    bad_rows: float
    stillborn: float
    withheld: float
    jumps: int


@dataclass(frozen=True)
class Scenario:
    """Everything that a seed decides before anything runs.

    `turns`: what one turn of the engine's loop can take, in seconds.
    """

    seed: int
    spec: KVSpec
    num_blocks: int
    config: SchedulerConfig
    prefix_caching: bool
    short_keys: bool
    kept_share: float
    jobs: list[Job]
    faults: Faults
    front: Front
    turns: tuple[float, ...] = (0.001, 0.01, 0.2)


def short_key(parent: bytes, tokens: bytes) -> bytes:
    """So short that different prefixes often have the same key."""
    return hashlib.blake2b(parent + tokens, digest_size=1).digest()


def _prompt(rng: random.Random, prefixes: list[list[int]]) -> list[int]:
    prefix = rng.choice(prefixes)
    shared = prefix[: rng.choice([0, len(prefix), len(prefix), rng.randint(0, len(prefix))])]
    own = rng.choice([0, 1, rng.randint(0, 20)])
    return shared + [rng.randrange(3) for _ in range(max(own, 0 if shared else 1))]


def _keep(rng: random.Random, prompt: list[int]) -> tuple[KeptPrefix, ...]:
    lengths = sorted(rng.randint(1, len(prompt)) for _ in range(rng.choice([1, 3])))
    return tuple(KeptPrefix(length, rng.choice([0.2, 5.0, 500.0])) for length in lengths)


def _job(rng: random.Random, name: int, prefixes: list[list[int]], span: float, leaving: float) -> Job:
    prompt = _prompt(rng, prefixes)
    pooling: Pooling | None = rng.choice([None, None, None, None, None, None, "last", "mean"])
    scored = pooling is None and rng.random() < 0.2
    most = rng.choice([1, 2, rng.randint(1, 24), CONTEXT if rng.random() < 0.05 else 8])
    params = SamplingParams(
        n=rng.choice([1, 1, 1, 2, 4]) if pooling is None else 1,
        max_tokens=0 if scored and rng.random() < 0.5 else most,
        seed=name,
        prompt_logprobs=0 if scored else None,
        ignore_eos=rng.random() < 0.5,
    )
    standing = Standing(
        priority=rng.choice([0, 0, 0, 0, 1, 2, BACKGROUND_PRIORITY]),
        tenant=rng.choice(["", "", "one", "two"]),
        weight=rng.choice([1.0, 4.0]),
        cache_salt=rng.choice(["", "", "other"]),
    )
    leaves = rng.random() < leaving
    return Job(
        name=name,
        prompt=prompt,
        params=params,
        standing=standing,
        keep=_keep(rng, prompt) if pooling is None and rng.random() < 0.2 else (),
        pooling=pooling,
        arrives=rng.random() * span,
        reading=rng.choice([0.0, 0.0, 0.0, 0.05, 1.0]),
        patience=rng.choice([0.0, 0.001, rng.random(), rng.random() * 5]) if leaves and rng.random() < 0.7 else None,
        outputs_wanted=rng.randint(1, 6) if leaves else None,
    )


def _send_over_http(rng: random.Random, job: Job, server: Front, prefixes: list[list[int]]) -> None:
    """Have a job's user come over HTTP."""
    stays = job.patience is None and job.outputs_wanted is None
    salt = job.standing.cache_salt
    chosen, job.params = manner(rng, job.params, job.pooling, salt, stays=stays and not job.poison)
    if job.poison:
        chosen = replace(chosen, timeout=None, tries=9)
    job.manner = chosen
    job.standing = standing(rng, server, chosen, job.standing.priority)
    if chosen.path in (CHAT, RESPONSES, MESSAGES):
        job.prompt = language()[2].encode([{"role": "user", "content": chosen.content}])
    elif chosen.path == COMPLETIONS and job.params.prompt_logprobs is None and rng.random() < 0.2 and not job.poison:
        # Several prompts are several requests of the engine, and with a poison several causes of its ends.
        job.more = [_prompt(rng, prefixes) for _ in range(rng.randint(1, 2))]
    if chosen.path in (RESPONSES, MESSAGES):
        job.tokens = None


def _faults(rng: random.Random, poisoned: bool) -> Faults:
    def sometimes(chance: float, rate: float) -> float:
        return rate if rng.random() < chance else 0.0

    # With a poison, all other ends are its doing, so that what it may cost others is known.
    deaths = 0 if poisoned else rng.choice([0, 1, 2, 5])
    return Faults(
        deaths=deaths,
        killed=sometimes(0.5, 0.05),
        silenced=sometimes(0.5, 0.05),
        raised=sometimes(0.4, 0.05),
        starved=sometimes(0.3, 0.05),
        hangs=sometimes(0.5, 0.1),
        bad_rows=sometimes(0.4, 0.05),
        stillborn=0.0 if poisoned else sometimes(0.2, 0.4),
        withheld=sometimes(0.4, 0.1),
        jumps=rng.choice([0, 0, 1, 3]),
    )


def scenario(seed: int) -> Scenario:
    """What a seed stands for."""
    rng = random.Random(seed)
    # Numbers of their own, so that drafts, and whoever comes over HTTP, change nothing of the rest.
    drafts, others = random.Random(f"drafts {seed}"), random.Random(f"front {seed}")
    max_num_seqs = rng.choice([1, 2, 4, 8])
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=rng.choice([max_num_seqs, max_num_seqs + 1, max_num_seqs + rng.randint(0, 48), 256]),
        max_chunk=rng.choice([None, None, 1, rng.randint(2, 24)]),
        max_model_len=CONTEXT,
        max_prefix_waits=rng.choice([0, 2, 64]),
        max_background_tokens=rng.choice([1, 8, 64]),
        max_scored_positions=rng.choice([1, 3, 17, 128]),
        draft_depth=drafts.choice([0, 0, 1, 4]),
        draft_width=drafts.choice([0, 3]),
        fixed_depth=drafts.random() < 0.5,
    )
    spec = kv_spec(rng.choice([1, 2, 4, 8]), rng.choice([(None,), (None,), (None, 5), (3,), (9, None, 9)]))
    prefixes = [[rng.randrange(3) for _ in range(rng.randint(1, 30))] for _ in range(rng.randint(1, 3))]
    span, leaving = rng.choice([0.0, 0.5, 5.0]), rng.choice([0.0, 0.2, 0.9])
    jobs = [_job(rng, name, prefixes, span, leaving) for name in range(1, rng.randint(3, 15))]
    outputs = [job for job in jobs if job.pooling is None]
    poisoned = bool(outputs) and rng.random() < 0.15
    if poisoned:
        chosen = rng.choice(outputs)
        chosen.poison, chosen.patience, chosen.outputs_wanted = rng.choice(["taken", "computed"]), None, None
    server = front(others, poisoned=poisoned)
    for job in jobs:
        if not job.keep and others.random() < server.share:
            _send_over_http(others, job, server, prefixes)
    needs = sorted(
        spec.blocks_for(len(prompt) + (job.params.max_tokens or 1) - 1, config.max_num_batched_tokens)
        for job in jobs
        for prompt in job.prompts
    )
    num_blocks = rng.choice(
        [needs[-1] - 1, needs[-1], needs[-1], needs[-1] + 1, needs[-1] + 3, needs[-1] * 2, sum(needs)]
    )
    return Scenario(
        seed=seed,
        spec=spec,
        num_blocks=max(1, num_blocks),
        config=config,
        prefix_caching=rng.random() < 0.85,
        short_keys=rng.random() < 0.2,
        kept_share=rng.choice([0.0, 0.3, 1.0]),
        jobs=jobs,
        faults=_faults(rng, poisoned),
        front=server,
    )
