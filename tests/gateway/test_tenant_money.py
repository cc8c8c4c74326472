"""What tenants of a gateway pay: budgets, prices, and what is in the ledger."""

import contextlib
import json
from decimal import Decimal

import pytest

from gateway.conftest import COST, World, ask, bearer, month
from penstock.gateway.guardrail_options import Guardrail
from penstock.metering.prices import Price
from penstock.tenancy.settings import Settings, changed
from penstock.tenancy.statement import statement
from support.scripted_http import Received, Step, answer, scripted, stream, text_chunk, usage_chunk
from support.waiting import PATIENCE, until


@pytest.mark.parametrize("whose", ["key", "project", "organisation"])
def test_a_budget_holds_and_is_known_after_a_restart(world: World, whose: str) -> None:
    budget = {"budget_per_day": str(3 * COST + Decimal("0.000001"))}
    _, secret = world.key(**(budget if whose == "key" else {}))
    if whose == "project":
        world.registry.set_project("test", "acme.web", changed(Settings(), budget))
    elif whose == "organisation":
        world.registry.set_organisation("test", "acme", changed(Settings(), budget))
    gateway = world.gateway()
    # It could cost 2 for the prompt and 10 for the answer, and costs 17.
    assert [ask(gateway, secret, max_tokens=5).status_code for _ in range(4)] == [200, 200, 200, 402]
    refused = ask(gateway, secret, max_tokens=5)
    owner = {"key": "This API key has", "project": "Keys of the project acme.web have"}.get(whose, "Keys of the org")
    error = refused.json()["error"]
    assert error["code"] == "budget_exceeded" and error["message"].startswith(owner)
    assert "a budget of 0.000052 for the day 20" in error["message"] and "0.000051 are used" in error["message"]
    until(lambda: statement(world.database, month()).requests == 3)
    assert ask(world.gateway(), secret, max_tokens=5).status_code == 402

    def told() -> list[tuple[str, float]]:
        found = [each for each in world.registry.audit(None, 100) if each.action == "budget.share"]
        return [(each.subject.partition("/")[0], json.loads(bytes(each.detail))["share"]) for each in found][::-1]

    # 29, 46 and too many of 52 are used or reserved; the second gateway's refusal is not told again.
    until(lambda: [share for _, share in told()] == [0.5, 0.8, 1.0])
    assert {owner for owner, _ in told()} == {whose}


def test_a_budget_has_to_have_room_for_the_answers_of_all_prompts(world: World) -> None:
    _, secret = world.key(budget_per_day="0.001")
    gateway = world.gateway()
    refused = ask(gateway, secret, prompt=["the fox"] * 50, max_tokens=100)
    assert refused.status_code == 402 and "may cost 0.010125" in refused.json()["error"]["message"]
    assert ask(gateway, secret, prompt=["the fox"] * 4, max_tokens=100).status_code == 200
    assert gateway.asked == [1]


def test_money_is_reserved_before_it_is_spent(world: World) -> None:
    """Of many that come together, no more are let through than the budget is enough for at the most they may cost."""
    _, secret = world.key(budget_per_month="0.00005")
    going = list[bool]()
    gateway = world.gateway(lambda _request: stream(text_chunk("a"), lambda: bool(going), usage_chunk(2, 1)))
    with contextlib.ExitStack() as stack:
        body = {"model": "scripted", "prompt": "the fox", "stream": True, "max_tokens": 10}

        def begin() -> int:
            sent = gateway.http.stream("POST", "/v1/completions", json=body, headers=bearer(secret))
            return stack.enter_context(sent).status_code

        # Each may cost 22 millionths of the 50, and costs 4.
        assert [begin() for _ in range(3)] == [200, 200, 402]
        going.append(True)
    until(lambda: statement(world.database, month()).requests == 2)
    assert statement(world.database, month()).cost == 2 * Decimal("0.000004")
    assert ask(gateway, secret, max_tokens=10).status_code == 200


def test_a_model_without_a_price(world: World) -> None:
    _, plain = world.key()
    _, bounded = world.key(budget_per_day=1)
    gateway = world.gateway(price=(), free=())
    assert ask(gateway, plain).status_code == 200
    refused = ask(gateway, bounded)
    assert refused.status_code == 400 and "The model scripted has no price" in refused.json()["error"]["message"]
    until(lambda: statement(world.database, month()).requests == 1)
    told = statement(world.database, month())
    assert told.cost == 0 and told.lines[0].unpriced_requests == 1
    assert ask(world.gateway(price=(), free=("scripted",)), bounded).status_code == 200
    other = Price(model="other", input=Decimal(1), output=Decimal(1))
    assert ask(world.gateway(price=(other,)), plain).status_code == 400


def test_tokens_that_are_only_counted_cost_nothing(world: World) -> None:
    """No model has read them. Vectors have no tokens either, also where a server does not tell what it used."""
    _, secret = world.key()
    gateway = world.gateway(lambda _request: answer(b'{"input_tokens": 7, "tokens": [1, 2, 3, 4, 5, 6, 7]}'))
    for path in ("/v1/messages/count_tokens", "/v1/responses/input_tokens"):
        assert ask(gateway, secret, path=path).status_code == 200
    until(lambda: statement(world.database, month()).requests == 2)
    (line,) = statement(world.database, month()).lines
    assert (line.prompt_tokens, line.output_tokens, line.cost, line.estimated_requests) == (0, 0, 0, 0)
    assert ask(gateway, secret, path="/v1/embeddings").status_code == 200
    until(lambda: statement(world.database, month()).requests == 3)
    (line,) = statement(world.database, month()).lines
    assert (line.prompt_tokens, line.output_tokens, line.estimated_requests) == (2, 0, 1)


def test_what_failed_costs_nothing_and_what_was_left_costs_what_came(world: World) -> None:
    _, secret = world.key()
    left = list[bool]()

    def script(request: Received) -> list[Step]:
        if request.body["prompt"] == "fail":
            return answer(b'{"error": {"message": "no"}}', status=400)
        return stream(text_chunk("a"), text_chunk("b"), lambda: bool(left), text_chunk("c"), usage_chunk(7, 5))

    gateway = world.gateway(script)
    assert ask(gateway, secret, prompt="fail").status_code == 400
    sent = gateway.http.stream(
        "POST",
        "/v1/completions",
        json={"model": "scripted", "prompt": "the fox", "stream": True},
        headers=bearer(secret),
    )
    with sent as response:
        lines = response.iter_lines()
        assert '"a"' in next(lines) and next(lines) == "" and '"b"' in next(lines)
    until(lambda: statement(world.database, month()).requests == 2)
    (line,) = statement(world.database, month()).lines
    # Nothing said what it used: its prompt has 2 tokens by its bytes, and two events came.
    assert (line.prompt_tokens, line.output_tokens, line.estimated_requests) == (2, 2, 1)
    assert line.cost == Decimal("0.000006")
    left.append(True)


def test_an_answer_that_is_given_again_is_in_the_ledger_and_costs_nothing(world: World) -> None:
    world.registry.create_project("test", "acme.mobile", Settings())
    world.registry.set_organisation("test", "acme", Settings(answer_cache_seconds=3600))
    (_, web), (_, phone) = world.key(), world.key("acme.mobile")
    _, never = world.key(answer_cache_seconds=0)
    gateway = world.gateway()
    found = [ask(gateway, key).headers.get("x-penstock-cache") for key in (web, web, phone, never, web)]
    assert found == ["miss", "hit", "miss", None, "hit"]
    until(lambda: statement(world.database, month()).requests == 5)
    told = statement(world.database, month())
    assert told.cost == 3 * COST
    assert sorted((each.project, each.requests, each.cached_answers, each.cost) for each in told.lines) == [
        ("acme.mobile", 1, 0, COST),
        ("acme.web", 1, 0, COST),
        ("acme.web", 3, 2, COST),
    ]
    assert all(each.estimated_requests == each.unpriced_requests == 0 for each in told.lines)


def test_an_answer_that_a_guardrail_refuses_is_paid_for(world: World) -> None:
    _, secret = world.key()
    with scripted(lambda _: answer(b'{"action": "deny"}')) as server:
        rail = Guardrail(name="rail", url=server.base, when="after", seconds=PATIENCE)
        assert ask(world.gateway(guardrail=(rail,)), secret).status_code == 400
        until(lambda: statement(world.database, month()).requests == 1)
    assert statement(world.database, month()).cost == COST
