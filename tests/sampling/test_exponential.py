import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.sampling.exponential import exp


def test_it_never_changes():
    """The tokens that top-p keeps hang on these bits."""
    found = [value.hex() for value in exp(np.array([0.0, -0.1, -1.0, -36.6])).tolist()]
    assert found == ["0x1.0000000000000p+0", "0x1.cf46d99d52b3ap-1", "0x1.78b56362cef38p-2", "0x1.25878aca16dbep-53"]


@given(st.floats(-700, 0))
def test_it_is_accurate(x):
    (found,) = exp(np.array([x]))
    assert abs(found - math.exp(x)) <= 2 * math.ulp(math.exp(x))


def test_nothing_is_left_far_below():
    assert exp(np.array([-701.0, -1e300, -np.inf])).tolist() == [0.0, 0.0, 0.0]
