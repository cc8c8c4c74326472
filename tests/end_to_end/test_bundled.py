"""`penstock serve` and `penstock run` as a newcomer types them: without a model."""

import subprocess
import sys
from collections.abc import Callable

import openai

from support.live_server import RunningServer
from support.waiting import PATIENCE

QUESTION = "Write a haiku about rain."


def test_the_server_starts_with_the_bundled_model(
    bundled: RunningServer, client_of: Callable[[RunningServer], openai.OpenAI]
) -> None:
    client = client_of(bundled)
    assert [model.id for model in client.models.list()] == ["haiku"]
    answer = client.chat.completions.create(
        model="haiku", messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=100
    )
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"


def test_run_answers_a_prompt_that_is_not_quoted() -> None:
    command = [sys.executable, "-m", "penstock.cli.main", "run", "--threads", "1", "--temperature", "0", "haiku"]
    quoted, words = (
        subprocess.run([*command, *prompt], capture_output=True, text=True, timeout=PATIENCE)
        for prompt in ([QUESTION], QUESTION.split())
    )
    assert quoted.returncode == 0, quoted.stderr
    assert quoted.stdout.strip()
    assert words.stdout == quoted.stdout


def test_run_without_a_model_chats_with_the_bundled_one() -> None:
    command = [sys.executable, "-m", "penstock.cli.main", "run", "--threads", "1", "--max-tokens", "40"]
    result = subprocess.run(command, input=f"{QUESTION}\n/exit\n", capture_output=True, text=True, timeout=PATIENCE)
    assert result.returncode == 0, result.stderr
    assert "haiku" in result.stderr.splitlines()[0]
    assert result.stdout.strip("> \n")
