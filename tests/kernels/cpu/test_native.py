"""The compiled module as part of a process: absent, forked, its threads exchanged while they work."""

import os
import subprocess
import sys
import textwrap
import threading

import pytest
import torch

from penstock.kernels.cpu.native import OBSTACLE, native
from penstock.kernels.cpu.weights import pack_dense
from support.waiting import PATIENCE

needs_native = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

WITHOUT = """
    import importlib.abc, sys

    class Blocked(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name == "penstock.kernels.cpu._native":
                raise {error}

    sys.meta_path.insert(0, Blocked())
    from penstock import LLM, SamplingParams
    from penstock.core.errors import ConfigurationError

    llm = LLM("haiku", threads=1)
    print(len(llm.generate(["rain"], SamplingParams(max_tokens=3, ignore_eos=True))[0].token_ids))
    try:
        LLM("haiku", quantization="int4")
    except ConfigurationError as error:
        print(error.message)
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.parametrize(
    "error, reason",
    [
        ("ModuleNotFoundError('blocked', name=name)", "C++ compiler"),
        ("ImportError('GLIBCXX_9 not found')", "GLIBCXX_9 not found"),
    ],
)
def test_without_the_module_everything_runs_but_quantization(error: str, reason: str) -> None:
    result = run(WITHOUT.replace("{error}", error))
    assert result.returncode == 0, result.stderr
    tokens, refusal = result.stdout.splitlines()
    assert tokens == "3"
    assert "--quantization int4 is not possible here" in refusal and reason in refusal


@needs_native
def test_a_forked_child_computes_and_ends() -> None:
    result = run("""
        import os, sys, torch
        from penstock.kernels.cpu.native import native
        from penstock.kernels.cpu.weights import pack_dense

        weight, x, output = pack_dense(torch.randn(256, 64)), torch.randn(5, 64), torch.empty(5, 256)
        native.set_threads(3)
        weight.handle.multiply(x, output)
        again = torch.empty(5, 256)
        child = os.fork()
        if child == 0:
            weight.handle.multiply(x, again)
            native.set_threads(2)
            weight.handle.multiply(x, again)
            sys.exit(0 if torch.equal(output, again) and native.threads() == 2 else 1)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert result.returncode == 0, result.stderr


@needs_native
def test_threads_are_exchanged_while_they_work() -> None:
    weight, x = pack_dense(torch.randn(512, 64)), torch.randn(7, 64)
    expected = torch.empty(7, 512)
    weight.handle.multiply(x, expected)
    wrong: list[int] = []

    def work() -> None:
        output = torch.empty(7, 512)
        for index in range(400):
            weight.handle.multiply(x, output)
            if not torch.equal(output, expected):
                wrong.append(index)

    before = native.threads()
    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    threads = 1
    while any(worker.is_alive() for worker in workers):
        threads = threads % 3 + 1
        native.set_threads(threads)
    native.set_threads(before)
    assert not wrong


@needs_native
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be kept on one processor here")
def test_threads_that_share_one_processor_wait_for_one_another() -> None:
    result = run("""
        import os, sys, torch
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        from penstock.kernels.cpu.native import native
        from penstock.kernels.cpu.weights import pack_dense

        weight, x = pack_dense(torch.randn(1024, 512)), torch.randn(64, 512)
        expected, output = torch.empty(64, 1024), torch.empty(64, 1024)
        native.set_threads(1)
        weight.handle.multiply(x, expected)
        native.set_threads(4)
        for _ in range(100):
            weight.handle.multiply(x, output)
            if not torch.equal(output, expected):
                sys.exit(1)
    """)
    assert result.returncode == 0, result.stderr


@needs_native
def test_arrays_are_never_replaced_by_copies() -> None:
    """A copy in another type or layout would take the result and be thrown away."""
    integers = torch.empty(4, 64, dtype=torch.int8)
    with pytest.raises(TypeError):
        native.round_int8(torch.randn(4, 64), integers, torch.empty(4, dtype=torch.float64))
    with pytest.raises(TypeError):
        native.Weight("float32", 32, 16, 0, False, False, torch.empty(2048 // 4, dtype=torch.int32))
    rows = torch.empty(64, 2).T
    with pytest.raises(TypeError):
        pack_dense(torch.randn(4, 64)).handle.look_up(torch.tensor([0, 1]), rows)
