"""What the tests of the sampler run on."""

from collections.abc import Iterator

import pytest

from penstock.kernels.cpu.native import OBSTACLE
from penstock.sampling import sampler
from penstock.sampling.reference import Reference


@pytest.fixture(scope="module", params=["native", "reference"])
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever is said of the sampler holds for both implementations."""
    if request.param == "native":
        if OBSTACLE is not None:
            pytest.skip(OBSTACLE)
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "chooser", lambda vocab_size: Reference(vocab_size).choose)
        yield
