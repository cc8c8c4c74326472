"""Notices that a machine will be taken away: a file, and what the services of the large clouds say."""

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from penstock.core.errors import ConfigurationError
from penstock.server.notices import USUAL_SECONDS, Notice, look_of, wait_for_notice
from support.http_server import running

AT = datetime.now(UTC).replace(microsecond=0) + timedelta(days=10)


class Service:
    """The metadata services of three clouds, as they document them.

    Attributes:
        action: of AWS, None where there is none.
        preempted: of Google Cloud.
        events: of Azure.
    """

    def __init__(self) -> None:
        self.action: dict[str, str] | None = None
        self.preempted = "FALSE"
        self.events: list[dict[str, Any]] = []
        self.app = Starlette(
            routes=[
                Route("/latest/api/token", self.token, methods=["PUT"]),
                Route("/latest/meta-data/spot/instance-action", self.aws),
                Route("/computeMetadata/v1/instance/preempted", self.gcp),
                Route("/metadata/scheduledevents", self.azure),
                Route("/metadata/instance/compute/name", self.name),
            ]
        )

    def token(self, request: Request) -> Response:
        assert int(request.headers["x-aws-ec2-metadata-token-ttl-seconds"]) > 0
        return PlainTextResponse("a token")

    def aws(self, request: Request) -> Response:
        if request.headers.get("x-aws-ec2-metadata-token") != "a token":
            return PlainTextResponse("", 401)
        return PlainTextResponse("", 404) if self.action is None else JSONResponse(self.action)

    def gcp(self, request: Request) -> Response:
        known = request.headers.get("metadata-flavor") == "Google"
        return PlainTextResponse(self.preempted if known else "", 200 if known else 403)

    def azure(self, request: Request) -> Response:
        known = request.headers.get("metadata") == "true" and request.query_params["api-version"] == "2020-07-01"
        return JSONResponse({"DocumentIncarnation": 1, "Events": self.events} if known else {}, 200 if known else 400)

    def name(self, request: Request) -> Response:
        known = request.headers.get("metadata") == "true" and request.query_params["format"] == "text"
        return PlainTextResponse("this-machine", 200 if known else 400)


@contextmanager
def clouds() -> Iterator[tuple[Service, str]]:
    service = Service()
    with running(service.app) as base:
        yield service, base


def test_a_file_is_a_notice_and_may_say_how_long_there_is(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    look = look_of(str(path))
    assert look() is None
    path.write_text("")
    now = path.stat().st_mtime
    found = look()
    assert found is not None and 0 <= found.seconds <= USUAL_SECONDS and str(path) in found.why
    path.write_text("120\n")
    os.utime(path, (now + 1e6, now + 1e6))
    assert look() == Notice(120.0, f"the file {path} is there")
    os.utime(path, (now - 1e6, now - 1e6))
    assert look() == Notice(0.0, f"the file {path} is there")
    path.write_text("soon")
    os.utime(path, (now + 1e6, now + 1e6))
    assert look() == Notice(USUAL_SECONDS, f"the file {path} is there, whose text is no number of seconds")


def left(notice: Notice | None) -> float:
    """How far its time is from the one that the service says."""
    assert notice is not None
    return abs(notice.seconds - (AT - datetime.now(UTC)).total_seconds())


def test_what_aws_says() -> None:
    with clouds() as (service, base):
        look = look_of(f"aws:{base}")
        assert look() is None
        service.action = {"action": "terminate", "time": AT.strftime("%Y-%m-%dT%H:%M:%SZ")}
        found = look()
        assert left(found) < 600 and found is not None and found.why == "AWS will terminate this instance"


def test_what_google_cloud_says() -> None:
    with clouds() as (service, base):
        look = look_of(f"gcp:{base}/")
        assert look() is None
        service.preempted = "TRUE\n"
        assert look() == Notice(USUAL_SECONDS, "Google Cloud preempts this instance")
        service.preempted = "<html>"
        with pytest.raises(ValueError, match="answered '<html>' instead of TRUE or FALSE"):
            look()


def test_what_azure_says_of_this_machine() -> None:
    with clouds() as (service, base):
        look = look_of(f"azure:{base}")
        assert look() is None
        event = {"EventType": "Preempt", "EventStatus": "Scheduled", "NotBefore": format_datetime(AT, usegmt=True)}
        service.events = [{**event, "Resources": ["another"]}, {**event, "EventType": "Reboot"}]
        assert look() is None
        service.events.append({**event, "Resources": ["another", "this-machine"]})
        found = look()
        assert left(found) < 600 and found is not None and found.why == "Azure preempts this machine"
        service.events = [{"EventType": "Preempt", "NotBefore": "", "Resources": ["this-machine"]}]
        assert look() == Notice(USUAL_SECONDS, "Azure preempts this machine")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("notice", "'notice' is neither aws, gcp, azure nor the absolute path of a file; name one of them."),
        ("aws:here", "'aws:here' has no URL behind the colon, such as http://169.254.169.254."),
    ],
)
def test_what_is_no_source(source: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        look_of(source)


def test_a_source_that_fails_is_told_once_and_asked_on(caplog: pytest.LogCaptureFixture) -> None:
    gone, odd = OSError("it is gone"), TypeError("it is odd")
    answers = iter([gone, gone, None, gone, odd, Notice(3.0, "now")])

    def look() -> Notice | None:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(wait_for_notice(look, 0.0)) == Notice(3.0, "now")
    told = [f"No notice can be seen: it is {why}. It is looked for again and again." for why in ("gone", "odd")]
    assert [each.message for each in caplog.records] == [told[0], *told]


def test_a_service_that_is_not_there_says_nothing() -> None:
    with clouds() as (_, base):
        pass
    with pytest.raises(OSError, match="/preempted cannot be reached"):
        look_of(f"gcp:{base}")()
