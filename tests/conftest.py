"""Settings of the whole test suite."""

import asyncio
import functools
import gc
import itertools
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
import torch
from hypothesis import HealthCheck, settings

from penstock.configuration.devices import resolve_device
from penstock.runtime.gpus import find_gpus

# Without a GPU that can be used Triton interprets its kernels. It reads this when it is first imported, which other
# libraries may do.
if resolve_device("auto", find_gpus(), lambda *_note: None) is None:
    os.environ["TRITON_INTERPRET"] = "1"

# What collecting imports is there to the end; to look through it for garbage takes as long as many a folder's tests.
gc.disable()

# Under `python -O` only what pytest rewrites is asserted; see `support/optimized.py`.
if not __debug__:
    pytest.register_assert_rewrite("support")

# For each test, pytest adds its handlers to every logger that does not hand on its records; torch has forty of them.
for _logger in logging.root.manager.loggerDict.values():
    if isinstance(_logger, logging.Logger) and _logger.name.startswith("torch"):
        _logger.propagate = True

# The machine may be busy with something else, so no example has a deadline.
COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("developer", max_examples=12, **COMMON)
settings.register_profile("ci", max_examples=12, derandomize=True, print_blob=True, **COMMON)
# Of the whole suite in `make soak`; "soak" is for the parts of it that run for longest.
settings.register_profile("whole", max_examples=200, **COMMON)
settings.register_profile("soak", max_examples=2000, stateful_step_count=100, **COMMON)
settings.load_profile("ci" if os.environ.get("CI") else "developer")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing that a test loads, in this process or another, gets into the user's cache of packed weights, or data."""
    os.environ["PENSTOCK_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["PENSTOCK_DATA"] = str(tmp_path_factory.mktemp("data"))


@pytest.fixture
def any_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed weights are kept on the disk, however little of it is free."""
    from penstock.loading import cache_folder

    monkeypatch.setattr(cache_folder, "SHARE_KEPT_FREE", 0.0)


@pytest.fixture(scope="session", autouse=True)
def _loop_of_libraries() -> Iterator[None]:
    """The event loop of those that ask for one where none runs: they would have one made, which is never closed."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()


@pytest.fixture(scope="module")
def looked_through() -> None:
    """What is in memory by now is looked through for garbage once, which takes a second or more, and not again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Workers share the machine: torch's other threads gain nothing for small tensors, and wait in a busy loop.

    Anew for each test, since an engine that a test makes sets them as it is asked.
    """
    torch.set_num_threads(1)


def pytest_configure() -> None:
    """A request whose test says nothing else has no time limit that a busy machine could reach."""
    from support.waiting import PATIENCE

    for limit in ("connect", "read", "write", "pool"):
        setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, limit, PATIENCE)
    # Each client reads the certificates of all authorities, for 20 ms; to read them once does for all clients. The
    # second is openai's own copy of the library.
    for library in filter(find_spec, ("httpx", "httpx2")):
        transports = import_module(f"{library}._transports.default")
        transports.create_ssl_context = functools.cache(transports.create_ssl_context)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workloads", type=int, default=60, help="how many random workloads the scheduler is tested on")
    parser.addoption("--first-seed", type=int, default=0, help="seed of the first random workload and world")
    parser.addoption("--worlds", type=int, default=60, help="how many random worlds engine and users are simulated in")
    parser.addoption("--aborts", type=int, default=150, help="how many requests are left at random points")
    parser.addoption("--names", type=int, default=100, help="how many names of each kind strangers make up")
    parser.addoption("--files", type=int, default=24, help="how many broken model files of each kind are opened")
    parser.addoption("--schemas", type=int, default=30, help="how many random JSON schemas a model is held to")
    parser.addoption("--drafted-prompts", type=int, default=8, help="how many prompts speculation is compared on")
    parser.addoption("--rank-faults", type=int, default=0, help="how many faults of ranks are drawn")
    parser.addoption("--write-features", action="store_true", help="write docs/features.md anew")
    parser.addoption("--slow", action="store_true", help="run what takes long too, of which others show a part")
    parser.addoption("--optimized", action="store_true", help="refuse unless only the tests have assertions")


# Files that take longest come first: the last ones are short, so that no worker waits long for another.
LONGEST = (
    "end_to_end/test_fleet.py",
    "end_to_end/test_ranks.py",
    "end_to_end/test_gateway.py",
    "end_to_end/test_disaggregation.py",
    "end_to_end/test_rank_faults.py",
    "end_to_end/test_shared_state.py",
    "gateway/test_admin_page.py",
    "end_to_end/test_kv_store.py",
    "end_to_end/test_gpu_bounded.py",
    "end_to_end/test_bit_exact_mixtures.py",
    "end_to_end/test_bit_exact.py",
    "end_to_end/test_speculation.py",
    "kernels/cuda/test_operations.py",
    "end_to_end/test_gpu.py",
    "kernels/cuda/test_compiles.py",
    "cli/test_cli.py",
    "kernels/cuda/test_graphs.py",
    "compression/test_quantize.py",
    "engine/test_supervision.py",
    "kernels/cpu/test_native.py",
    "end_to_end/test_batches_killed.py",
    "end_to_end/test_processes.py",
    "environment/test_optimized.py",
    "end_to_end/test_doctor.py",
    "end_to_end/test_explained.py",
    "end_to_end/test_traces.py",
    "clients/test_opencode.py",
    "clients/test_aider.py",
    "cli/test_evaluate.py",
    "cli/test_chat.py",
    "cli/test_bench_serve.py",
    "end_to_end/test_cancellation.py",
    "end_to_end/test_page.py",
    "end_to_end/test_bundled.py",
    "scheduler/test_noisy_tenant.py",
    "server/test_schemathesis.py",
    "server/test_page_in_browser.py",
    "simulation/test_planted_bugs.py",
)


@functools.cache
def _turn(path: Path) -> int:
    """Which turn a file of tests has."""
    name = Path(os.path.relpath(path, Path(__file__).parent)).as_posix()
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        from support.subsets import left_out

        for item in left_out(items):
            item.add_marker(pytest.mark.slow)
        slow = [item.get_closest_marker("slow") is not None for item in items]
        config.hook.pytest_deselected(items=list(itertools.compress(items, slow)))
        items[:] = [item for item, left_out in zip(items, slow, strict=True) if not left_out]
    items.sort(key=lambda item: _turn(item.path))


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.getoption("--optimized"):
        from support.optimized import why_not

        if (problem := why_not()) is not None:
            raise pytest.UsageError(f"--optimized: {problem}")
    for client in ("openai", "anthropic"):
        if (library := sys.modules.get(f"{client}._base_client")) is not None:
            library.SyncHttpxClientWrapper.__del__ = _must_be_closed
    gc.freeze()
    gc.enable()


def _must_be_closed(client: httpx.Client) -> None:
    """Fail for each client that a test leaves open.

    By themselves they close as they are collected, unless the collector comes to their connections first: then it is
    some other test that fails, in one run of many.
    """
    if not client.is_closed:
        warnings.warn(f"a client of {client.base_url} was left open", ResourceWarning, stacklevel=2, source=client)
