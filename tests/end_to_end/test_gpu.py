"""Whole engines on a GPU, or on its kernels as Triton interprets them, against the CPU's."""

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock import LLM, SamplingParams
from support.device import DEVICE, INTERPRETED
from support.waiting import PATIENCE

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.cuda

TESTS = Path(__file__).parent.parent
QUESTIONS = ("Write a haiku about rain.", "12 + 30?")
SIZES = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 4, "speculative": "off"}
# Keys and values of 2 layers with a head of 64 numbers, of 16 tokens.
BLOCK_BYTES = 16 * 2 * 2 * 64 * 4
# Interpreted, a step takes seconds.
PARAMS = {"max_tokens": 3 if INTERPRETED else 24, "temperature": 0.0, "logprobs": 2}
# More than a block of 16 tokens, by few, and the pool has room for one of these at a time.
LONG = ["Write a haiku about rain and rain. Say it once more.", "12 + 30? Say it once more."]
SMALL = {"kv_cache_memory": 2 * BLOCK_BYTES, "max_model_len": 32, "max_num_seqs": 1, "deterministic": True}

# A line for each engine that is asked for.
PROGRAM = """
import json, sys
import support.interpreter
from penstock import LLM, SamplingParams
for line in sys.stdin:
    asked = json.loads(line)
    llm = LLM(asked["model"], **asked["options"])
    answers = []
    for batch in asked["batches"]:
        chats = [[{"role": "user", "content": question}] for question in batch]
        found = llm.chat(chats, SamplingParams(**asked["params"]))
        answers.append([[each.token_ids, [token.logprob for token in each.logprobs or []]] for each in found])
    load, steps = llm.load, llm.totals
    counts = [load.preemptions, load.recomputed_tokens, steps.swapped_out, steps.swapped_in, steps.not_swapped]
    memory, disk = load.shelf("memory"), load.shelf("disk")
    counts += [memory.written, memory.read, disk.read, disk.lost]
    assert llm.flush(600.0)
    print(json.dumps([answers, counts]), flush=True)
"""

Answers = list[list[Any]]


class Counts(NamedTuple):
    """What an engine has counted: sequences, positions, blocks, blocks, sequences, then slots."""

    preemptions: int
    recomputed: int
    swapped_out: int
    swapped_in: int
    not_swapped: int
    kept: int = 0
    read: int = 0
    from_disk: int = 0
    lost: int = 0


class Process:
    """A process that makes engines, one after the other, until the block ends."""

    def __enter__(self) -> "Process":
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]),
            },
        )
        return self

    def __exit__(self, *unused: object) -> None:
        self._process.communicate(timeout=PATIENCE)

    def ask(self, asked: dict[str, Any]) -> tuple[list[Answers], Counts]:
        """What an engine gives, and what it has counted; why it gives nothing is on standard error."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(asked)}\n")
        self._process.stdin.flush()
        answers, counts = json.loads(self._process.stdout.readline())
        return answers, Counts(*counts)


# Interpreted, for all engines: it takes longer to start than most of them to run.
SHARED = Process()


@pytest.fixture(autouse=True, scope="module")
def _shared() -> Iterator[None]:
    if not INTERPRETED:
        yield
        return
    with SHARED:
        yield


def on_gpu(batches: list[list[str]], params: dict[str, Any] = PARAMS, **options: Any) -> list[Answers]:
    """Of each batch the tokens, and their log probabilities, of each answer."""
    return counted(batches, params, **options)[0]


def counted(batches: list[list[str]], params: dict[str, Any] = PARAMS, **options: Any) -> tuple[list[Answers], Counts]:
    """The same, and what the engine has counted."""
    device = "cuda" if INTERPRETED else str(DEVICE)
    asked = {
        "model": "haiku-draft",
        "options": SIZES | options | {"device": device},
        "batches": batches,
        "params": params,
    }
    if INTERPRETED:
        return SHARED.ask(asked)
    # One of its own each time, as a server's engine is: what one leaves on the device is not there for the next.
    with Process() as own:
        return own.ask(asked)


def on_cpu(batch: list[str], params: dict[str, Any] = PARAMS, **options: Any) -> Answers:
    llm = LLM("haiku-draft", device="cpu", threads=1, **(SIZES | options))
    chats = [[{"role": "user", "content": question}] for question in batch]
    found = llm.chat(chats, SamplingParams(**params))
    return [[each.token_ids, [token.logprob for token in each.logprobs or []]] for each in found]


@functools.cache
def plain() -> Answers:
    """What those that are long are answered by an engine with nothing beside its pool."""
    return [answer for (answer,) in on_gpu([[each] for each in LONG], PARAMS | {"max_tokens": 3}, **SMALL)]


@pytest.fixture(scope="module")
def expected() -> Answers:
    return on_cpu(list(QUESTIONS))


def test_greedy_tokens_are_those_of_the_cpu(expected: Answers) -> None:
    found, again = on_gpu([list(QUESTIONS), list(QUESTIONS)])
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    for (_, mine), (_, right) in zip(found, expected, strict=True):
        assert mine == pytest.approx(right, abs=1e-4)
    # The second time from the prefix cache.
    assert [tokens for tokens, _ in again] == [tokens for tokens, _ in expected]


def test_deterministic_is_the_same_bits_in_any_batch(expected: Answers) -> None:
    """Alone and together, in one chunk and in several, computed and from the cache."""
    alone = [[question] for question in QUESTIONS]
    params = PARAMS | {"max_tokens": 2 if INTERPRETED else 24}
    first, *others = on_gpu([list(QUESTIONS), *alone], params, deterministic=True)
    small = {"max_num_batched_tokens": 8, "max_num_seqs": 2, "enable_prefix_caching": False}
    (cut,) = on_gpu([list(QUESTIONS)], params, deterministic=True, **small)
    assert [answer for (answer,) in others] == first == cut
    assert [tokens for tokens, _ in first] == [tokens[: params["max_tokens"]] for tokens, _ in expected]


def test_preempted_requests_go_on_where_they_were() -> None:
    """Both answers need two blocks and there are three: what is swapped out is not computed again."""
    params = PARAMS | {"max_tokens": 9, "ignore_eos": True}
    small = {"kv_cache_memory": 3 * BLOCK_BYTES, "max_model_len": 32, "enable_prefix_caching": False}
    undisturbed = on_cpu(list(QUESTIONS), params)
    (found,), counts = counted([list(QUESTIONS)], params, **small, swap_space=2 * BLOCK_BYTES)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in undisturbed]
    for (_, mine), (_, right) in zip(found, undisturbed, strict=True):
        assert mine == pytest.approx(right, abs=1e-4)
    assert counts == Counts(preemptions=1, recomputed=0, swapped_out=2, swapped_in=2, not_swapped=0)
    # The same without: its context is computed again.
    llm = LLM("haiku-draft", threads=1, **(SIZES | small))
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    again = llm.chat(chats, SamplingParams(**params))
    assert [each.token_ids for each in again] == [tokens for tokens, _ in undisturbed]
    assert (llm.load.preemptions, llm.totals.swapped_out) == (1, 0) and llm.load.recomputed_tokens > 16


def test_prefixes_that_the_pool_has_lost_come_from_the_processors_memory() -> None:
    """The pool has room for one question at a time; the first is asked again behind the second."""
    alone, params = [[LONG[each]] for each in (0, 1, 0)], PARAMS | {"max_tokens": 3}
    found, counts = counted(alone, params, **SMALL, kv_host_memory=8 * BLOCK_BYTES)
    assert found == [[plain()[each]] for each in (0, 1, 0)]
    assert [tokens for ((tokens, _),) in found] == [on_cpu(batch, params)[0][0] for batch in alone]
    assert counts.read == 1 and counts.kept >= 2 and counts.swapped_out == counts.swapped_in == 0


@pytest.mark.parametrize("kept", ["auto", pytest.param("int8", marks=pytest.mark.slow)])
def test_a_restart_finds_its_prefixes_on_the_disk(kept: str, tmp_path: Path) -> None:
    """With the same bits as without; files that are spoiled meanwhile are computed."""
    params, disk = PARAMS | {"max_tokens": 3}, {"kv_disk": str(tmp_path / "kv")}
    options = {**SMALL, "kv_cache_dtype": kept}
    right = [[plain()[0]]] if kept == "auto" else on_gpu([[LONG[0]]], params, **options)
    first, counts = counted([[LONG[0]]], params, **options, **disk)
    assert first == right and counts.from_disk == 0
    again, counts = counted([[LONG[0]]], params, **options, **disk)
    assert again == right and counts.from_disk == 1 and counts.lost == 0
    for path in (tmp_path / "kv").glob("1-*/??/*.kv"):
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    spoiled, counts = counted([[LONG[0]]], params, **options, **disk)
    assert spoiled == right and counts.lost == 1


def test_prefixes_come_from_the_processors_memory_before_the_disk(tmp_path: Path) -> None:
    """Both get what is published; behind a restart the disk alone has it, and memory gets it from there.

    Nothing is asked for that keeps tokens from staying on the device, so that steps are launched one behind the other.
    """
    params, options = {"max_tokens": 3, "temperature": 0.0}, {**SMALL, "kv_host_memory": 8 * BLOCK_BYTES}
    asked = [[LONG[each]] for each in (0, 1, 0)]
    right = [[[plain()[each][0], []]] for each in (0, 1, 0)]
    options["kv_disk"] = str(tmp_path / "kv")
    first, counts = counted(asked, params, **options)
    assert first == right and (counts.read, counts.from_disk) == (1, 0) and counts.kept >= 2
    again, counts = counted(asked, params, **options)
    assert again == right and (counts.read, counts.from_disk) == (1, 2) and counts.kept >= 2


def test_a_store_that_fails_costs_time_only(tmp_path: Path) -> None:
    """The folder is there at the start, and is not when it is written to and read from."""
    params, folder = PARAMS | {"max_tokens": 3}, tmp_path / "kv"
    options = {**SMALL, "kv_store": f"file://{folder}", "prefix_secret_file": str(tmp_path / "secret")}
    (tmp_path / "secret").write_text("s" * 64)
    folder.mkdir()
    assert counted([[LONG[0]]], params, **options)[0] == [[plain()[0]]]
    for path in folder.glob("1-*/??"):
        shutil.rmtree(path)
        path.write_text("not a folder")
    again, counts = counted([[LONG[0]]], params, **options)
    assert again == [[plain()[0]]] and counts.from_disk == 0


@pytest.mark.parametrize(
    ("options", "most"),
    [({"kv_cache_dtype": "int8"}, 0.01), ({"kv_cache_dtype": "fp8"}, 0.01), ({"quantization": "int8"}, 0.1)],
)
def test_fewer_bits_are_those_of_the_cpu(options: dict[str, str], most: float) -> None:
    """Rounded alike: what is left are values between two integers, which the last bit of a sum decides on.

    In int8 these are activations, several times in each layer.
    """
    params = PARAMS | {"max_tokens": 1}
    (found,) = on_gpu([list(QUESTIONS)], params, **options)
    for (tokens, mine), (right, theirs) in zip(found, on_cpu(list(QUESTIONS), params, **options), strict=True):
        assert tokens == right
        assert mine == pytest.approx(theirs, abs=most)


def test_a_step_planned_before_the_last_is_known_changes_nothing() -> None:
    """With nothing that keeps tokens from staying on the device."""
    params = {"max_tokens": 4, "temperature": 0.8, "seed": 5, "n": 2}
    (found,) = on_gpu([list(QUESTIONS)], params)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in on_cpu(list(QUESTIONS), params)]


def test_sampled_tokens_and_drafts_from_text(expected: Answers) -> None:
    sampled = PARAMS | {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 5}
    (found,) = on_gpu([list(QUESTIONS)], sampled)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in on_cpu(list(QUESTIONS), sampled)]
    (drafted,) = on_gpu([list(QUESTIONS)], speculative="ngram")
    assert [tokens for tokens, _ in drafted] == [tokens for tokens, _ in expected]


RANKS = {"tensor_parallel_size": 2, "max_model_len": 32}


@pytest.mark.skipif(not INTERPRETED, reason="needs two GPUs, or the interpreter")
def test_several_devices_give_the_tokens_of_one(expected: Answers) -> None:
    """Each has a part of every layer, of the embedding and of the head; they meet by gloo here."""
    found, again = on_gpu([list(QUESTIONS), list(QUESTIONS)], **RANKS)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    for (_, mine), (_, right) in zip(found, expected, strict=True):
        assert mine == pytest.approx(right, abs=1e-4)
    assert [tokens for tokens, _ in again] == [tokens for tokens, _ in expected]


@pytest.mark.skipif(not INTERPRETED, reason="needs two GPUs, or the interpreter")
def test_devices_share_tokens_that_the_first_alone_knows() -> None:
    """With nothing that keeps tokens from staying on the device, so that the next step is planned before the last."""
    params = {"max_tokens": 4, "temperature": 0.8, "seed": 5, "n": 2}
    (found,) = on_gpu([list(QUESTIONS)], params, **RANKS)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in on_cpu(list(QUESTIONS), params)]


@pytest.mark.skipif(not INTERPRETED, reason="needs two GPUs, or the interpreter")
def test_deterministic_devices_give_the_same_bits_in_any_batch() -> None:
    alone, params = [[question] for question in QUESTIONS], PARAMS | {"max_tokens": 2}
    first, *others = on_gpu([list(QUESTIONS), *alone], params, deterministic=True, **RANKS)
    assert [answer for (answer,) in others] == first
