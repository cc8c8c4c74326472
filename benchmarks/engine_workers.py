"""Engines in processes of their own, which take turns: a line of JSON asks one, and a line of JSON answers."""

import json
import subprocess
import sys
from typing import Any


class Worker:
    """A script that was started with `--work`, which has the options of its engine, by this interpreter or another."""

    def __init__(self, script: str, options: dict[str, Any], interpreter: str = sys.executable) -> None:
        command = [interpreter, script, "-", "--work", json.dumps(options)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def ask(self, *asked: Any) -> Any:
        """What it answers."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("An engine ended; its words are above.")
        return json.loads(line)
