"""`penstock run` at a terminal: what Ctrl-C ends, and what the model's authors recommend."""

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.checkpoints import make
from support.waiting import PATIENCE, until

CTRL_C = "\x03"
# The terminal must be the controlling one of a session of its own, or Ctrl-C would reach nobody. Tests that a script
# runs in the background hand on that it is ignored.
START = (
    "import fcntl, signal, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "signal.signal(signal.SIGINT, signal.default_int_handler); from penstock.cli.main import main; main()"
)


class Terminal:
    """`penstock run` with a terminal of its own, as a person sees it."""

    def __init__(self, *arguments: str, kind: str = "dumb") -> None:
        self._master, slave = pty.openpty()
        command = [sys.executable, "-c", START, "run", *arguments]
        # A dumb one shows nothing but text: no spinner that would count as an answer.
        environment = {**os.environ, "TERM": kind}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=environment
        )
        os.close(slave)
        self.shown = ""
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 4096)
            except OSError:  # nobody has the other end any more
                return
            self.shown += data.decode(errors="replace")

    def type(self, text: str) -> int:
        """Press keys; returns where in the output what follows begins."""
        here = len(self.shown)
        os.write(self._master, text.encode())
        return here

    def wait_for(self, text: str, since: int = 0, more: int = 0) -> None:
        """Wait until `text` was shown, and `more` characters after it."""

        def is_shown() -> bool:
            where = self.shown.find(text, since)
            if where >= 0 and len(self.shown) >= where + len(text) + more:
                return True
            assert self.process.poll() is None, self.shown[-2000:]
            return False

        until(is_shown, lambda: self.shown[-2000:])

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.reader.join()
        os.close(self._master)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A model that never ends an answer by itself, with room for a long one."""
    # As many ids as the tokenizer knows, so that nearly every one is text to wait for.
    path = make("llama", tmp_path / "llama", vocab_size=268, max_position_embeddings=1_000_000)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": []}))
    # What ends a text for the configuration, or a turn for the tokenizer, would end it, too.
    for name, setting in (("config.json", "eos_token_id"), ("tokenizer_config.json", "eos_token")):
        settings = json.loads((path / name).read_text())
        settings.pop(setting, None)
        (path / name).write_text(json.dumps(settings))
    return path


@pytest.fixture
def terminal(checkpoint: Path) -> Iterator[Terminal]:
    terminal = Terminal(str(checkpoint), "--threads", "1", "--kv-cache-memory", "256MiB")
    yield terminal
    terminal.close()


def test_ctrl_c_ends_an_answer_and_at_the_prompt_the_chat(terminal: Terminal) -> None:
    terminal.wait_for("> ")
    for message in ("first", "second"):
        typed = terminal.type(f"{message}\n")
        terminal.wait_for(message, typed, more=40)
        stopped = terminal.type(CTRL_C)
        terminal.wait_for("interrupted", stopped)
        terminal.wait_for("> ", terminal.shown.find("interrupted", stopped))
    terminal.type(CTRL_C)
    assert terminal.process.wait(PATIENCE) == 130
    terminal.reader.join()
    assert "Traceback" not in terminal.shown


def test_ctrl_c_while_the_model_loads(checkpoint: Path) -> None:
    terminal = Terminal(str(checkpoint), "--threads", "1", "--kv-cache-memory", "256MiB", kind="xterm")
    try:
        # Before Python itself has started, the terminal's Ctrl-C would not be Penstock's to answer.
        terminal.wait_for("loading")
        terminal.type(CTRL_C)
        assert terminal.process.wait(PATIENCE) == 130
    finally:
        terminal.close()


def test_ctrl_c_ends_a_single_answer_and_the_command(checkpoint: Path) -> None:
    terminal = Terminal(str(checkpoint), "one question", "--threads", "1", "--kv-cache-memory", "256MiB")
    try:
        terminal.wait_for("", more=400)
        terminal.type(CTRL_C)
        assert terminal.process.wait(PATIENCE) == 130
    finally:
        terminal.close()
    assert "Traceback" not in terminal.shown


def test_an_answer_uses_what_the_model_recommends(checkpoint: Path, penstock_here) -> None:
    def answer(*arguments: str) -> str:
        asked = ("run", str(checkpoint), "hello", "--max-tokens", "12", "--threads", "1")
        result = penstock_here(*asked, "--kv-cache-memory", "64MiB", *arguments)
        assert result.returncode == 0, result.stderr
        return str(result.stdout)

    # top_k = 1 is greedy whatever the random numbers are.
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": [], "top_k": 1}))
    greedy = answer("--temperature", "0")
    assert answer("--seed", "1") == greedy
    (checkpoint / "generation_config.json").unlink()
    assert answer("--seed", "1") != greedy
