"""What replicas may use of a machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigurationError
from penstock.fleet.description import Between, FleetDescription, ModelDescription
from penstock.fleet.sharing import BESIDE_BYTES, Slot, share

GIB = 1 << 30


def model(
    name: str, replicas: int | Between = 1, cores: int | None = None, memory: str | None = None
) -> ModelDescription:
    return ModelDescription(name=name, replicas=replicas, cores=cores, memory=memory)


def test_what_is_left_is_divided_equally() -> None:
    fleet = FleetDescription(model=(model("a", 2, cores=1, memory="4GiB"), model("b", Between(0, 2))))
    slots = share(fleet, range(6), 20 * GIB + BESIDE_BYTES)
    assert [each.cores for each in slots["a"]] == [(0,), (1,)]
    assert [each.cores for each in slots["b"]] == [(2, 3), (4, 5)]
    # An update has a replica more: of `a`, 4 GiB; of `b`, as much as its replicas.
    assert {each.memory for each in slots["a"]} == {4 * GIB} and {each.memory for each in slots["b"]} == {4 * GIB}


def test_more_replicas_than_cores_share_them() -> None:
    fleet = FleetDescription(model=(model("a", 2), model("b", 1)))
    slots = share(fleet, [4, 5], 8 * GIB)
    assert [each.cores for each in (*slots["a"], *slots["b"])] == [(4,), (5,), (4,)]


def test_what_is_more_than_there_is_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"ask for 3 cores \(3 × 1 for a\), and this machine has 2"):
        share(FleetDescription(model=(model("a", 3, cores=1),)), range(2), 8 * GIB)
    large = FleetDescription(model=(model("a", 2, memory="4GiB"),))
    with pytest.raises(ConfigurationError, match="4.00 GiB more during an update"):
        share(large, range(2), 12 * GIB)
    assert share(FleetDescription(model=large.model, surge=0), range(2), 12 * GIB)
    with pytest.raises(ConfigurationError, match="parts of what is left"):
        share(FleetDescription(model=(model("a"),)), range(2), BESIDE_BYTES)


def test_each_machine_of_a_replica_takes_as_much() -> None:
    described = ModelDescription(name="big", cores=1, memory="4GiB", machines=2)
    fleet = FleetDescription(model=(described, model("b")), surge=0)
    slots = share(fleet, range(4), 12 * GIB + BESIDE_BYTES)
    assert len(slots["big"]) == 1 and slots["big"][0].memory == 4 * GIB
    assert slots["b"][0] == Slot((2, 3), 4 * GIB)
    with pytest.raises(ConfigurationError, match="2 × 1 for big"):
        share(fleet, range(1), 12 * GIB)
    # An update has all machines of it once more.
    with pytest.raises(ConfigurationError, match="8.00 GiB more during an update"):
        share(FleetDescription(model=(described,)), range(4), 15 * GIB)


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from([None, 1, 2]), st.sampled_from([None, "1GiB", "3GiB"])),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 2),
    st.integers(1, 16),
    st.integers(0, 64),
)
def test_no_more_is_given_than_there_is(
    models: list[tuple[int, int | None, str | None]], surge: int, cores: int, memory: int
) -> None:
    described = tuple(model(f"m{at}", *each) for at, each in enumerate(models))
    try:
        slots = share(FleetDescription(model=described, surge=surge), range(cores), memory * GIB)
    except ConfigurationError:
        return
    every = [slot for each in slots.values() for slot in each]
    # Even where an update has the largest ones once more.
    assert (
        sum(each.memory for each in every) + surge * max(each.memory for each in every) <= memory * GIB - BESIDE_BYTES
    )
    assert all(each.memory > 0 and each.cores and set(each.cores) <= set(range(cores)) for each in every)
    for each in described:
        assert len(slots[each.name]) == each.bounds.most
        assert each.cores is None or all(len(slot.cores) == each.cores for slot in slots[each.name])
