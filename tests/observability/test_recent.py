"""Which accounts are remembered, for whom, and for how long."""

from typing import Any

from penstock.observability.account import MOST_STALLS, STALL_SECONDS, Account
from penstock.observability.recent import (
    MOST_LINES,
    MOST_NOTED,
    MOST_PROMPTS,
    MOST_RECENT,
    MOST_REFUSED,
    MOST_TOKENS,
    Recent,
)
from support.accounts_made import make_journal


def ended(recent: Recent, name: str, tenant: str = "", outcome: Any = "completed", **fields: Any) -> Account:
    """An account that has been through its life."""
    account = Account(name, "chat", tenant, **{"taken_on": 0.0, **fields})
    recent.begin(account)
    account.end(outcome)
    recent.end(account)
    return account


def test_the_newest_are_remembered_by_all_their_names() -> None:
    recent = Recent()
    first = Account("req_first", "chat", "", client_id="mine", taken_on=0.0)
    recent.begin(first)
    recent.answered_as(first, "chatcmpl-1")
    for name in ("req_first", "chatcmpl-1", "mine"):
        assert recent.find(name, "") is first
    first.end("completed")
    recent.end(first)
    for number in range(MOST_RECENT - 1):
        ended(recent, f"req_{number}")
    assert recent.find("req_first", "") is first
    ended(recent, "req_last", client_id="mine")
    assert recent.find("req_first", "") is None and recent.find("chatcmpl-1", "") is None
    # The name is another request's by now.
    assert recent.find("mine", "") is recent.find("req_last", "")
    assert len(recent.all("")) == MOST_RECENT


def test_they_are_listed_as_the_server_got_to_them() -> None:
    recent = Recent()
    # One after the other, although the kernel's clock, which is coarse, has the second arrive before the first.
    for name, arrived in (("req_first", 10.003), ("req_second", 10.001)):
        ended(recent, name, arrived=arrived)
    recent.begin(Account("req_third", "chat", "", arrived=10.002))
    assert [each.id for each in recent.all("")] == ["req_third", "req_second", "req_first"]


def test_what_failed_or_was_slow_is_remembered_longer() -> None:
    recent = Recent()
    failed, slow = ended(recent, "req_failed", outcome="failed"), ended(recent, "req_slow", missed=("ttft",))
    for number in range(MOST_RECENT):
        ended(recent, f"req_{number}")
    assert recent.find("req_failed", "") is failed and recent.find("req_slow", "") is slow
    for number in range(MOST_NOTED):
        ended(recent, f"bad_{number}", outcome="timed_out")
    assert recent.find("req_failed", "") is None


def test_requests_with_very_many_prompts_take_the_place_of_others() -> None:
    recent = Recent()
    many = MOST_PROMPTS // 4
    for number in range(6):
        ended(recent, f"req_{number}", journals=[make_journal()] * many)
    assert [account.id for account in recent.all("")] == ["req_5", "req_4", "req_3", "req_2"]
    assert recent.find("req_1", "") is None
    # The newest is there, however large.
    huge = ended(recent, "huge", journals=[make_journal()] * (MOST_PROMPTS + 1))
    assert recent.all("") == [huge]
    for number in range(5):
        ended(recent, f"small_{number}")
    assert len(recent.all("")) == 5 and recent.find("huge", "") is None


def test_prompts_are_kept_up_to_so_many_tokens() -> None:
    recent, prompt = Recent(keep_prompts=True), [7] * (MOST_TOKENS // 2)
    for number in range(3):
        ended(recent, f"req_{number}", prompts=[prompt])
    assert [account.id for account in recent.all("")] == ["req_2", "req_1"]


def test_lines_of_batches_and_refusals_crowd_out_nobody() -> None:
    recent = Recent()
    mine = ended(recent, "req_mine")
    for number in range(MOST_RECENT + MOST_REFUSED):
        ended(recent, f"no_{number}", outcome="failed", taken_on=None)
    assert recent.find("req_mine", "") is mine
    assert len(recent.all("")) == 1 + MOST_REFUSED
    for number in range(MOST_RECENT + MOST_LINES):
        ended(recent, f"line_{number}", line=True)
    assert recent.find("req_mine", "") is mine
    assert len(recent.all("")) == 1 + MOST_REFUSED + MOST_LINES


def test_a_tenant_finds_its_own_only() -> None:
    recent = Recent()
    hers, his = ended(recent, "req_1", "alice", client_id="same"), ended(recent, "req_2", "bob", client_id="same")
    assert recent.find("req_1", "alice") is hers and recent.find("req_1", "bob") is None
    assert recent.find("same", "alice") is hers and recent.find("same", "bob") is his
    assert recent.find("same", "carol") is None
    # A client may call its request as another one is called.
    ended(recent, "req_3", "bob", client_id="req_1")
    assert recent.find("req_1", "alice") is hers and recent.find("req_1", "bob").id == "req_3"  # type: ignore[union-attr]
    assert recent.find("req_1", None) is hers and recent.find("same", None) in (hers, his)
    assert [account.id for account in recent.all("bob")] == ["req_3", "req_2"]
    assert len(recent.all(None)) == 3


def test_prompts_are_kept_only_where_that_is_wanted() -> None:
    for keep in (False, True):
        recent = Recent(keep_prompts=keep)
        account = Account("req_1", "chat", "", prompts=[[1, 2, 3]])
        recent.begin(account)
        account.end("completed")
        recent.end(account)
        assert account.prompts == ([[1, 2, 3]] if keep else [])


def test_many_stalls_are_one_long_one_in_the_end() -> None:
    account = Account("req_1", "chat", "")
    account.sent()
    first = account.arrived - 1000.0
    for number in range(MOST_STALLS + 10):
        account.sending = first + number
        account.sent()
    assert len(account.stalls) == MOST_STALLS
    assert account.stalls[-1].began == first + MOST_STALLS - 1
    assert all(stall.seconds > STALL_SECONDS for stall in account.stalls)
    # What was being sent at the end was not read either.
    account.sending = first
    account.end("cancelled")
    assert account.stalled > 1000.0 * MOST_STALLS and account.sending is None
