"""The functions that a request passes, traced in both processes of a server: not many more than there were."""

import pytest

from penstock.kernels.cpu.native import OBSTACLE
from support.scripts import load_script


@pytest.mark.slow
@pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
def test_tokens_pass_few_functions() -> None:
    options = ["--speculative", "off", "--threads", "1"]
    first, later = load_script("token_path").trace("haiku", options, requests=1)
    to_first, to_later = ({f"{each.file}: {each.name}" for each in functions} for functions in (first, later))
    # A request is handed from one process to the other, and each token is computed, packed and sent back.
    assert {"engine/process.py: EngineProcess.submit", "scheduler/scheduler.py: Scheduler.add"} <= to_first
    computed = {"scheduler/scheduler.py: Scheduler.plan", "runtime/executor.py: ModelExecutor.execute"}
    assert computed | {"engine/messages.py: pack_outputs"} <= to_later
    assert len(first) <= 550 and len(later) <= 210
