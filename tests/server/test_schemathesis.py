"""Bodies made from the API's description, good and bad: no answer is a failure, and every answer is as described."""

import zlib
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation.meta import TestPhase
from schemathesis.pytest.lazy import get_all_tests
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock.server.app import create_app
from penstock.server.endpoints import ENDPOINTS
from penstock.server.openapi import document
from penstock.storage.store import Store
from penstock.text.tokenizer import Tokenizer
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.waiting import PATIENCE

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
# Of each endpoint, where most of the time goes to thinking them up; 200 under the profile for long runs.
EXAMPLES = settings.default.max_examples // 10 if settings.default.max_examples > 100 else 4
# Of the cases that cover each keyword of the description, of which there are thousands; all under that profile.
PART = 1 if settings.default.max_examples > 200 else 8
DOCUMENT = document(ENDPOINTS, "test")
schema = schemathesis.openapi.from_dict(DOCUMENT)


@pytest.fixture(scope="module")
def url(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = Store.open(tmp_path_factory.mktemp("data"))
    engine = ScriptedEngine(tokenizer.table, tokenizer.encode("Hello!", False))
    try:
        with running(create_app(engine, tokenizer, store=store)) as base:
            yield base
    finally:
        store.close()


def answers_as_described(case: schemathesis.Case, url: str) -> None:
    covering = case.meta is not None and case.meta.phase.name is TestPhase.COVERAGE
    if covering and zlib.crc32(repr((case.query, case.body)).encode()) % PART:
        return
    # Time that is too short for an answer ends in a 504, as it should; here every other 5xx is a failure.
    if isinstance(case.body, dict) and isinstance(case.body.get("timeout"), int | float):
        case.body["timeout"] = max(case.body["timeout"], PATIENCE) if case.body["timeout"] > 0 else case.body["timeout"]
    case.call_and_validate(base_url=url, checks=CHECKS)


# Not by `schema.parametrize`, whose tests have one name in common: of those, workers that share files run one. And what
# is asked is thought up where it is asked, which takes seconds.
@pytest.mark.parametrize(
    ("path", "method"), [(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods]
)
def test_every_answer_is_as_described(path: str, method: str, url: str) -> None:
    how = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
    mine = schema.include(path=path, method=method.upper())
    (made,) = get_all_tests(schema=mine, test_func=answers_as_described, settings=how, given_kwargs=None)
    made.ok()[1](url=url)
