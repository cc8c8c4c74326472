"""Random workloads: whatever arrives, is aborted or fails, every request ends with the right tokens and nothing leaks.

`--workloads` says how many are run, `--first-seed` from where; a failing seed replays exactly.
"""

import functools
import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import pytest

from penstock.cache.keeps import Keeps
from penstock.core.config import SchedulerConfig
from penstock.core.errors import RequestTooLarge
from penstock.core.kv import KVSpec
from penstock.core.kv_policy import POLICY_KINDS, WEIGHED, KVPolicy, PolicyKind
from penstock.core.plan import ShelfName, Shelved
from penstock.core.request import KeptPrefix, Request
from support.made_up_model import kv_spec, made_up_spec, sourced_spec
from support.scripted import ScriptedExecutor
from support.simulation import Disk, Simulation, make_request

SEEDS_PER_TEST = 25
# The seeds of the workloads that several tests look at are below it.
EARLY = 60
EOS = tuple(range(0, 997, 40))
Shelves = dict[ShelfName, Disk]


def colliding_hash(parent: bytes, tokens: bytes) -> bytes:
    """So short that different prefixes often have the same key."""
    return hashlib.blake2b(parent + tokens, digest_size=1).digest()


@dataclass(frozen=True)
class Workload:
    """One seed's requests, limits and luck."""

    simulation: Simulation
    requests: list[Request]
    arrival_rate: float
    abort_rate: float
    failure_rate: float
    failed_steps: float


def random_prompt(rng: random.Random, prefixes: list[list[int]]) -> list[int]:
    """Often a common prefix with something of its own after it, sometimes nothing but the prefix."""
    prefix = rng.choice(prefixes)
    prompt = prefix[: rng.choice([0, len(prefix), len(prefix), rng.randint(0, len(prefix))])]
    own = rng.choice([0, 1, rng.randint(0, 40)])
    return prompt + [rng.randrange(3) for _ in range(max(own, 0 if prompt else 1))]


def random_request(rng: random.Random, index: int, prefixes: list[list[int]]) -> Request:
    """Some are to score their prompt, and some of these nothing else; some become vectors."""
    max_tokens = rng.choice([1, 2, rng.randint(1, 30)])
    pooling = rng.choice([None, None, None, None, None, None, "last", "mean"])
    scored = pooling is None and rng.random() < 0.25
    return make_request(
        index,
        random_prompt(rng, prefixes),
        0 if scored and rng.random() < 0.5 else max_tokens,
        n=rng.choice([1, 1, 1, 2, 4]) if pooling is None else 1,
        priority=rng.choice([0, 0, 0, 1, 2]),
        salt=rng.choice(["", "", "other"]),
        eos=EOS if rng.random() < 0.5 else (),
        seed=rng.randrange(3),
        prompt_logprobs=0 if scored else None,
        pooling=pooling,
    )


def random_keep(rng: random.Random, request: Request) -> tuple[KeptPrefix, ...]:
    """Up to three prefixes of a prompt, kept for some steps."""
    lengths = sorted(rng.randint(1, len(request.prompt_token_ids)) for _ in range(rng.choice([0, 1, 3])))
    return tuple(KeptPrefix(length, rng.choice([5.0, 100.0])) for length in lengths)


def random_tenant(rng: random.Random, request: Request) -> Request:
    """The same request as one of some tenants of different weights."""
    tenant, weight = rng.choice([("", 1.0), ("a", 1.0), ("b", 4.0), ("c", 0.001)])
    standing = msgspec.structs.replace(request.standing, tenant=tenant, weight=weight)
    return msgspec.structs.replace(request, standing=standing)


def random_policy(rng: random.Random, request: Request, kinds: Sequence[PolicyKind], size: int) -> Request:
    """The same request, which may hold a part of its context."""
    if request.sampling.n > 1 or request.pooling is not None or rng.random() < 0.3:
        return request
    kind, sinks, recent = (
        rng.choice(kinds),
        rng.choice([0, 1, size, 3 * size, 6 * size]),
        rng.choice([1, size, 2 * size]),
    )
    least = -(-sinks // size) + -(-recent // size) + 3
    policy = KVPolicy(
        kind=kind,
        tokens=size * rng.randint(least, least + 2),
        sinks=sinks,
        recent=recent,
        patience=rng.choice([1, 7]),
    )
    sampling = request.sampling
    if sampling.max_tokens:
        sampling = msgspec.structs.replace(sampling, max_tokens=sampling.max_tokens + rng.choice([0, 40, 120]))
    return msgspec.structs.replace(request, sampling=sampling, kv_policy=policy, keep=())


@dataclass(frozen=True)
class Chances:
    """What a workload draws from a generator of its own, so that it changes nothing else of a seed's workload.

    Attributes:
        target_itl, draft_depth, draft_width, fixed_depth: as in `SchedulerConfig`.
        slowness: the most seconds that a step takes for each of its tokens.
        swap_share: blocks in the processor's memory for each of the pool.
        failed_steps: how many of the steps fail.
    """

    target_itl: float | None
    slowness: float
    draft_depth: int
    draft_width: int
    fixed_depth: bool
    swap_share: float
    failed_steps: float


def random_chances(luck: random.Random) -> Chances:
    target_itl, slowness = luck.choice([None, 0.1]), luck.choice([0.0, 0.0005, 0.01])
    depth = luck.choice([0, 0, 1, 3, 8])
    return Chances(
        target_itl,
        slowness,
        depth,
        draft_width=luck.choice([0, 1, 6]) if depth else 0,
        fixed_depth=luck.random() < 0.5,
        swap_share=luck.choice([0.0, 0.0, 0.2, 1.0, 3.0]),
        failed_steps=luck.choice([0.0, 0.0, 0.0, 0.05]),
    )


def random_config(rng: random.Random, chances: Chances) -> SchedulerConfig:
    max_num_seqs = rng.choice([1, 2, 4, 8])
    return SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=rng.choice([max_num_seqs, max_num_seqs + 1, max_num_seqs + rng.randint(0, 64), 512]),
        max_chunk=rng.choice([None, None, 1, rng.randint(2, 32)]),
        max_model_len=256,
        max_outstanding=rng.choice([1, 1, 2, 3]),
        static_batching=rng.random() < 0.1,
        max_prefix_waits=rng.choice([0, 2, 64]),
        max_scored_positions=rng.choice([1, 3, 17, 128]),
        target_itl=chances.target_itl,
        draft_depth=chances.draft_depth,
        draft_width=chances.draft_width,
        fixed_depth=chances.fixed_depth,
    )


def random_spec(rng: random.Random, luck: random.Random) -> KVSpec:
    block_size = rng.choice([1, 2, 4, 16])
    windows = rng.choice([(None,), (None,), (None, 5), (3,), (9, None, 9)])
    if luck.random() < 0.5:
        return made_up_spec(block_size, block_size * luck.choice([1, 2, 4]))
    return kv_spec(block_size, windows)


def bounded_requests(seed: int, requests: list[Request], spec: KVSpec) -> list[Request]:
    """The same requests; in most workloads some of them hold a part of their contexts, where layers allow it."""
    rng = random.Random(seed ^ 0xB0DE)
    whole = [group.is_whole for group in spec.groups]
    if not any(whole) or rng.random() >= 0.6:
        return requests
    kinds = ("window", "window", *WEIGHED) if all(whole) else WEIGHED
    return [random_policy(rng, request, kinds, spec.block_size) for request in requests]


def blocks_of(request: Request, spec: KVSpec, config: SchedulerConfig) -> int:
    """The blocks that a request needs at most."""
    policy = request.kv_policy
    tokens = len(request.prompt_token_ids) + (request.sampling.max_tokens or 1) - 1
    most = None if policy is None or policy.kind == "snapkv" else policy.tokens
    return spec.blocks_for(tokens, config.max_num_batched_tokens, most, len(request.source))


def sourced_requests(seed: int, requests: list[Request], spec: KVSpec) -> tuple[list[Request], KVSpec]:
    """The same requests; in some workloads each has a source, which it may have in common with others."""
    rng = random.Random(seed ^ 0x50CE)
    if any(request.kv_policy for request in requests) or rng.random() >= 0.5:
        return requests, spec
    spec = rng.choice([sourced_spec(spec.block_size), kv_spec(spec.block_size, sources=True)])
    sources = [[rng.randrange(3) for _ in range(rng.choice([1, rng.randint(1, 60)]))] for _ in range(rng.randint(1, 6))]
    return [msgspec.structs.replace(request, source=tuple(rng.choice(sources))) for request in requests], spec


def random_workload(seed: int, shelves: Shelves) -> Workload:
    rng, luck = random.Random(seed), random.Random(-seed - 1)
    prefixes = [[rng.randrange(3) for _ in range(rng.randint(1, 40))] for _ in range(rng.randint(1, 3))]
    requests = [random_request(rng, index, prefixes) for index in range(rng.randint(2, 16))]
    kept_share = luck.choice([0.0, 0.0, 0.3, 1.0])
    if kept_share:
        requests = [msgspec.structs.replace(request, keep=random_keep(luck, request)) for request in requests]
    if luck.random() < 0.5:
        requests = [random_tenant(luck, request) for request in requests]
    chances = random_chances(luck)
    config, spec = random_config(rng, chances), random_spec(rng, luck)
    requests = bounded_requests(seed, requests, spec)
    requests, spec = sourced_requests(seed, requests, spec)
    config = msgspec.structs.replace(config, max_source=None if spec.source_group is None else 60)
    if random.Random(seed ^ 0x57A6).random() < 0.3:
        config = msgspec.structs.replace(config, stages=config.max_outstanding)
    needs = [blocks_of(request, spec, config) for request in requests]
    num_blocks = rng.choice([max(needs) - 1, max(needs), max(needs) + 1, max(needs) * 2, sum(needs)])
    prefix_caching, colliding = rng.random() < 0.8, rng.random() < 0.2
    # Keys that collide are told apart by the tokens, which what is beside the pool does not have.
    told_apart = prefix_caching and not colliding
    kept, beside, on_disk = (random.Random(seed ^ each) for each in (0x5EED, 0xB0A7, 0xD15C))
    has_disk, has_host = told_apart and kept.random() < 0.5, told_apart and beside.random() < 0.4
    keeps = Keeps(spec.slot_bytes(0) * on_disk.choice([0, 5, 1000]), spec.slot_bytes)
    if has_disk and on_disk.random() < 0.25:
        requests = [
            msgspec.structs.replace(request, keep_whole=on_disk.choice([0.0, 5.0, 100.0])) for request in requests
        ]
    simulation = Simulation(
        max(1, num_blocks),
        spec=spec,
        config=config,
        prefix_caching=prefix_caching,
        key_of=colliding_hash if colliding else None,
        disk=shelves.get("disk", {}) if has_disk else None,
        most_writing=kept.choice([1, 3, 1000]),
        keeps=keeps,
        shared=shelves.get("shared", {}) if has_disk and kept.random() < 0.7 else None,
        kept_share=kept_share,
        swap_blocks=int(chances.swap_share * num_blocks),
        host_blocks=beside.choice([1, num_blocks // 2, 2 * num_blocks]) if has_host else 0,
        late=random.Random(seed) if luck.random() < 0.5 else None,
        seconds=lambda plan: plan.num_tokens * chances.slowness * luck.random(),
    )
    return Workload(
        simulation,
        requests,
        arrival_rate=rng.choice([0.05, 0.5, 1.0]),
        abort_rate=rng.choice([0.0, 0.0, 0.02, 0.2]),
        failure_rate=rng.choice([0.0, 0.0, 0.0, 0.05]),
        failed_steps=chances.failed_steps,
    )


def arrivals(rng: random.Random, workload: Workload) -> Iterator[list[Request]]:
    """Requests that arrive before each step."""
    waiting = list(reversed(workload.requests))
    while waiting:
        batch = []
        while waiting and rng.random() < workload.arrival_rate:
            batch.append(waiting.pop())
            if rng.random() < 0.3:
                break
        yield batch


def use_shelves(rng: random.Random, executor: ScriptedExecutor) -> None:
    """Others make room on a shelf, of which is not always told, or write there what another shelf has."""
    for name, shelf in executor.shelves.items():
        if shelf and rng.random() < 0.1:
            slot = rng.choice(list(shelf))
            del shelf[slot]
            if rng.random() < 0.5:
                executor.news.append(Shelved(name, *slot, there=False))
        for other, content in executor.shelves.items():
            if content and other != name and rng.random() < 0.1:
                slot = rng.choice(list(content))
                shelf[slot] = content[slot]
                executor.news.append(Shelved(name, *slot, there=True))


def run_workload(seed: int, shelves: Shelves | None = None) -> Simulation:
    """With shelves, it begins with what an earlier one has left there."""
    workload = random_workload(seed, shelves or {})
    simulation = workload.simulation
    # Others that use the shelves have a generator of their own.
    rng, others = random.Random(seed + 1), random.Random(-seed - 2)
    refused = 0
    coming = arrivals(rng, workload)
    for steps in range(20_000):
        batch = next(coming, None)
        for request in batch or []:
            try:
                simulation.submit(request)
            except RequestTooLarge:
                refused += 1
        if rng.random() < workload.abort_rate and simulation.requests:
            simulation.abort(rng.choice(list(simulation.requests)))
        if rng.random() < workload.failure_rate and simulation.sequences():
            simulation.executor.failing.add(rng.choice(simulation.sequences()).id)
        # Between plan and commit, the requests of outstanding plans may be aborted as well.
        if simulation.outstanding < simulation.config.max_outstanding:
            simulation.plan()
            if rng.random() < workload.abort_rate and simulation.requests:
                simulation.abort(rng.choice(list(simulation.requests)))
        use_shelves(others, simulation.executor)
        fails = workload.failed_steps > 0 and rng.random() < workload.failed_steps
        if not simulation.step(fails=fails) and batch is None:
            break
        assert steps < 10_000, "no end"
    simulation.check_idle()
    simulation.check_outputs()
    assert refused + len(simulation.requests) == len(workload.requests)
    return simulation


@functools.cache
def early_workload(seed: int) -> Simulation:
    """One of the first, at which several tests look."""
    return run_workload(seed)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "first_seed" in metafunc.fixturenames:
        first, count = metafunc.config.getoption("first_seed"), metafunc.config.getoption("workloads")
        metafunc.parametrize("first_seed", range(first, first + count, SEEDS_PER_TEST))


def test_random_workloads(first_seed: int, pytestconfig: pytest.Config) -> None:
    last = pytestconfig.getoption("first_seed") + pytestconfig.getoption("workloads")
    for seed in range(first_seed, min(first_seed + SEEDS_PER_TEST, last)):
        try:
            early_workload(seed) if seed < EARLY else run_workload(seed)
        except Exception as error:
            error.add_note(f"workload of seed {seed}")
            raise


def test_a_seed_replays_exactly() -> None:
    for seed in range(8):
        assert run_workload(seed).trace() == early_workload(seed).trace()


def test_some_workloads_bound_the_chunk() -> None:
    """Every plan keeps to the bound; prompts longer than it are computed in pieces."""
    bounded = 0
    for seed in range(16):
        simulation = early_workload(seed)
        bound = simulation.config.max_chunk
        counts = [row.count for plan in simulation.plans for row in plan.rows]
        if bound is not None and counts:
            assert max(counts) <= bound
            bounded += max(counts) == bound
    assert bounded


def test_different_seeds_make_different_plans() -> None:
    assert len({early_workload(seed).trace() for seed in range(8)}) == 8


def test_some_workloads_drop_tokens() -> None:
    """By each policy, and those whose contexts are bounded are preempted, too."""
    done = Counter[str]()
    for seed in range(EARLY):
        simulation = early_workload(seed)
        kinds = {each.request_id: each.kv_policy.kind for each in simulation.requests.values() if each.kv_policy}
        done += Counter(kinds[request] for request, dropped in simulation.dropped.items() if dropped)
        done["preempted"] += sum(request in kinds for facts in simulation.facts for request in facts.preempted)
        done["with windows"] += bool(kinds) and any(group.sees.last for group in simulation.spec.groups)
    assert min(done[name] for name in (*POLICY_KINDS, "preempted", "with windows")) > 0, done


def test_some_workloads_have_sources() -> None:
    """They are encoded, shared, and encoded again behind a preemption; some are longer than a step."""
    done = Counter[str]()
    for seed in range(EARLY):
        simulation = early_workload(seed)
        if simulation.spec.source_group is None:
            continue
        for plan, facts in zip(simulation.plans, simulation.facts, strict=False):
            done["encoded"] += sum(row.encodes > 0 for row in plan.rows)
            done["two in a step"] += sum(row.encodes > 0 for row in plan.rows) > 1
            done["beyond a step"] += plan.num_tokens > facts.budget
            done["found"] += sum(fact.prefix.found > 0 for fact in facts.admissions)
            done["found again"] += sum(fact.again and fact.prefix.found > 0 for fact in facts.admissions)
        sequences = [row.sequence for plan in simulation.plans for row in plan.rows if row.encodes]
        done["encoded again"] += len(sequences) - len(set(sequences))
    wanted = ("encoded", "two in a step", "beyond a step", "found", "found again", "encoded again")
    assert min(done[name] for name in wanted) > 0, done


def test_some_workloads_swap() -> None:
    """Blocks go out and come back, with one plan under way and with several; and there is not always room."""
    facts = {1: Counter[str](), 2: Counter[str]()}
    for seed in range(EARLY):
        simulation = early_workload(seed)
        done = facts[min(simulation.config.max_outstanding, 2)]
        for step in simulation.facts:
            done += Counter(out=step.swapped_out, back=step.swapped_in, refused=step.not_swapped)
    assert all(done[name] > 0 for done in facts.values() for name in ("out", "back")), facts
    assert facts[1]["refused"] + facts[2]["refused"] > 0


def test_workloads_after_a_restart_read_from_each_shelf(pytestconfig: pytest.Config) -> None:
    """From either, from both for one sequence; and some of what should have been there is not."""
    expected = {f"{name} {what}" for name in ("disk", "shared") for what in ("read", "lost")} | {"both", "memory read"}
    totals = Counter[str]()
    for seed in range(2 * EARLY):
        # Without `--slow` as many as show all of it.
        if all(totals[each] for each in expected) and not pytestconfig.getoption("slow"):
            break
        shelves = (early_workload(seed) if seed < EARLY else run_workload(seed)).executor.shelves
        simulation = run_workload(seed, {name: dict(shelf) for name, shelf in shelves.items()})
        for each in simulation.cache.shelves.totals():
            totals += Counter({f"{each.shelf} read": each.read, f"{each.shelf} lost": each.lost})
        for plan in simulation.plans:
            read = {transfer.source.store for transfer in plan.transfers if transfer.target.store == "pool"}
            totals["both"] += {"disk", "shared"} <= read
    assert all(totals[each] for each in expected), totals
