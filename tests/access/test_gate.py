"""What the gate keeps of requests that were refused is bounded, and tells tenants and endpoints apart."""

import asyncio

import pytest

from penstock.access import gate
from penstock.access.admission import AdmissionControl, AdmissionRequest, QueueBounds
from penstock.access.gate import Gate, UnparsedRequest
from penstock.core.errors import QueueFull
from support.scripted_engine import ScriptedEngine


def _demand(*lengths: int) -> AdmissionRequest:
    return AdmissionRequest(prompts=lengths, samples=1, max_tokens=(1,) * len(lengths))


def _full() -> Gate:
    """A gate before a queue with room for ten tokens."""
    admission = AdmissionControl(QueueBounds(requests=1000, tokens=100), lambda tokens: 1 + tokens // 16, lambda: 0.999)
    made = Gate(ScriptedEngine(None, [5]), admission)
    made.admit(UnparsedRequest("", "chat", b"first"), _demand(70), checked=True)
    return made


def _known(made: Gate, asked: UnparsedRequest) -> bool:
    """Whether it is refused before it is parsed."""
    try:
        made.check_asked(asked)
    except QueueFull:
        return True
    return False


def test_requests_are_known_by_tenant_endpoint_and_body() -> None:
    async def main() -> None:
        made = _full()
        asked = UnparsedRequest("alice", "chat", b"body")
        assert not _known(made, asked)
        with pytest.raises(QueueFull):
            made.admit(asked, _demand(40), checked=True)
        assert _known(made, asked)
        for other in (asked._replace(tenant="bob"), asked._replace(endpoint="messages"), asked._replace(body=b"bodY")):
            assert not _known(made, other)

    asyncio.run(main())


def test_a_request_that_may_ask_for_a_priority_waits_for_it_to_be_read() -> None:
    async def main() -> None:
        made = _full()
        assert made.check_asked(UnparsedRequest("", "chat", b"body"))
        assert not made.check_asked(UnparsedRequest("", "chat", b"body", prioritized=True))

    asyncio.run(main())


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_MOST_KNOWN", 10)

    async def main() -> None:
        made = _full()
        all_asked = [UnparsedRequest("", "chat", b"%d" % number) for number in range(15)]
        for asked in all_asked:
            with pytest.raises(QueueFull):
                made.admit(asked, _demand(40), checked=True)
        assert [_known(made, asked) for asked in all_asked] == [False] * 5 + [True] * 10
        long, many = UnparsedRequest("", "chat", b"x" * 70_000), UnparsedRequest("", "completions", b"many")
        for asked, demand in ((long, _demand(40)), (many, _demand(*[4] * 10))):
            with pytest.raises(QueueFull):
                made.admit(asked, demand, checked=True)
            assert not _known(made, asked)

    asyncio.run(main())
