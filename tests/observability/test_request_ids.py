"""Ids of requests: the server's own, and what of a client's is taken for one."""

import re

import pytest

from penstock.observability.request_ids import MAX_CLIENT_ID, client_id, new_request_id


def test_ids_are_all_different() -> None:
    made = {new_request_id() for _ in range(1000)}
    assert len(made) == 1000 and all(re.fullmatch(r"req_[0-9a-f]{24}", each) for each in made)


@pytest.mark.parametrize("given", [b"a", b"7f3c-11:x/y.z_1", b"x" * MAX_CLIENT_ID, b"Root=1-abc@d+e"])
def test_words_are_ids(given: bytes) -> None:
    assert client_id(given) == given.decode()


@pytest.mark.parametrize(
    "given", [None, b"", b" a", b"-a", b"a b", b"a\x1b[31m", b"\xffa", b"a\nb", b"a,b", b'{"a"}', b"x" * 129]
)
def test_anything_else_is_passed_over(given: bytes | None) -> None:
    assert client_id(given) is None
