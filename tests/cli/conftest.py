"""The command line without a process, whose imports take longer than most of what is asked of it."""

import io
import subprocess
import sys
from collections.abc import Callable

import pytest

from penstock.cli.main import main


@pytest.fixture
def penstock_here(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> "Callable[..., subprocess.CompletedProcess[str]]":
    """What `penstock` with these arguments prints and returns, standard input and environment given by name."""

    def call(*arguments: str, stdin: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["penstock", *arguments])
            patch.setattr(sys, "stdin", io.StringIO(stdin))
            for name, value in environment.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main()
        printed = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return subprocess.CompletedProcess(arguments, ended.value.code, printed.out, printed.err)

    return call
