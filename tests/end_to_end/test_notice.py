"""A machine that is taken away: what runs goes on elsewhere, and what was computed is there for those that come."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.operator import Operator
from support.processes import Process, fleet, started, under_way, waiting_for
from support.streams import reading
from support.waiting import PATIENCE, until

# Of the one that goes: all its streams have begun, and none has come to its end.
STEPS = 40
# Several blocks of tokens.
WORDS = "The tide comes in over the sand, and the boats lie by the wall until the morning. " * 3


def asked(number: int, max_tokens: int = 90) -> tuple[str, dict[str, Any]]:
    """A stream, every other one of them sampled."""
    prompt = f"{number}: {WORDS if number % 4 == 0 else 'The rain'}"
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": float(number % 2), "seed": number}
    return "/v1/completions", {**body, "stream": True, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("taken")
    (made / "secret").write_text("0123456789abcdef" * 4)
    (made / "kv").mkdir()
    return made


@contextlib.contextmanager
def replica(folder: Path, name: str, *options: str) -> Iterator[Process]:
    """It has a store in common with the others."""
    kept = ("--kv-store", f"file://{folder}/kv", "--prefix-secret-file", str(folder / "secret"))
    fixed = ("--speculative", "off", "--max-num-seqs", "64", "--admin-socket", str(folder / name))
    with started(folder, "serve", "haiku", *kept, *fixed, *options) as running:
        yield running


def cached(server: Process, prompt: str) -> tuple[int, int]:
    """Tokens of a prompt, and those that were not computed."""
    request = {"model": "haiku", "prompt": prompt, "max_tokens": 1, "temperature": 0}
    usage = httpx.post(f"{server.base}/v1/completions", json=request, timeout=PATIENCE).json()["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize(("number", "seconds"), [(12, 4), pytest.param(64, 30, marks=pytest.mark.slow)])
def test_streams_go_on_elsewhere_and_prefixes_are_there(
    folder: Path, number: int, seconds: int, tmp_path: Path
) -> None:
    """No stream fails, no token differs, and the machine's replacement computes no prompt that it was asked before."""
    notice, hot = tmp_path / "notice", f"Only the one that goes knows this, {number} times. {WORDS}"
    with replica(folder, f"steady-{number}") as steady:
        with reading(steady.base, [asked(each) for each in range(number)]) as answers:
            pass
        with replica(folder, f"taken-{number}", "--notice", str(notice)) as taken:
            length, none = cached(taken, hot)
            urls = [part for each in (taken, steady) for part in ("--replica", each.base)]
            with started(folder, "gateway", *urls, "--policy", "round-robin", *waiting_for(folder)) as passing:
                until(lambda: passing.log.read_text().count(" is ready") == 2)
                operator = Operator(folder / f"taken-{number}")
                operator.pause(True)
                with reading(passing.base, [asked(each) for each in range(number)]) as streams:
                    # The gateway sends it as many as one has room for that gets nowhere; the others come to their ends.
                    until(lambda: under_way(taken) + sum(each.ended for each in streams) == number)
                    operator.step(STEPS)
                    until(lambda: all(each.ended or (each.replica == taken.base and each.lines) for each in streams))
                    left = [each for each in streams if not each.ended]
                    # The engine waits, so that nothing ends by itself in the time that there is.
                    notice.write_text(str(seconds))
                for each, right in zip(streams, answers, strict=True):
                    assert each.ended and each.text() == right.text()
                    assert len(each.ids()) == 1 and len(right.text()) > 60
                assert len(left) == fleet(passing)["retries"]["resumed"] >= 4
            assert taken.process.wait(PATIENCE) == 0
            told = taken.log.read_text()
            assert "nothing new is taken on, running requests have" in told and "Not all" not in told
    with replica(folder, f"new-{number}") as new:
        assert none == 0 and cached(new, hot) == (length, (length - 1) // 16 * 16)
