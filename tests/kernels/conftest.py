"""One thread: the suite shares its machine, and small products gain nothing from more."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)
