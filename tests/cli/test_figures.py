"""Options of a server's figures, and what `penstock metrics` prints."""

import sys
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.configuration.slo import Slo
from penstock.observability.settings import AIM, FigureOptions

ROOT = Path(__file__).parents[2]


def printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: str
) -> tuple[object, str, str]:
    monkeypatch.setattr(sys, "argv", ["penstock", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    output = capfd.readouterr()
    return ended.value.code, output.out, output.err


@pytest.mark.parametrize(
    ("what", "file"),
    [
        ("dashboard", "deploy/grafana/penstock.json"),
        ("gateway-dashboard", "deploy/grafana/penstock-gateway.json"),
        ("alerts", "deploy/prometheus/alerts.yml"),
    ],
)
def test_what_is_printed_is_what_the_repository_has(
    what: str, file: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    status, output, _ = printed(monkeypatch, capfd, "metrics", what)
    assert not status and output == (ROOT / file).read_text()


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--slo", "ttft=fast", "--slo: 'ttft=fast' is no limit"),
        ("--slo", "itl=1s,itl=2s", "--slo has itl twice"),
        ("--cost-per-hour", "0", "--cost-per-hour is 0; it must be more than 0"),
        ("--cost-per-hour", "inf", "--cost-per-hour is inf"),
        ("--otlp-endpoint", "localhost:4318", "is no address of a collector"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    option: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    status, _, error = printed(monkeypatch, capfd, "serve", "haiku", option, value)
    assert status == 2 and len(error.splitlines()) == 1
    assert error.startswith("penstock: ") and says in error


def test_settings_are_explained(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ("serve", "haiku", "--explain-config", "--slo", "ttft=0.5s,itl=50ms", "--cost-per-hour", "2.5")
    arguments += ("--otlp-endpoint", "http://localhost:4318/")
    status, output, _ = printed(monkeypatch, capfd, *arguments)
    lines = {line.partition("  ")[0]: line for line in output.splitlines()}
    assert not status
    assert "TTFT ≤ 500 ms, ITL ≤ 50 ms" in lines["service levels"] and "as asked" in lines["service levels"]
    assert "2.5" in lines["cost per hour"]
    assert "sent to http://localhost:4318/v1/traces" in lines["traces"]
    assert f"{AIM * 0.05:g}" in lines["target itl"]


def test_steps_aim_for_the_service_level_unless_something_else_was_asked_for() -> None:
    assert FigureOptions().target_itl(None) is None
    assert FigureOptions(Slo(ttft=1.0)).target_itl(None) is None
    assert FigureOptions(Slo(itl=0.05)).target_itl(None) == AIM * 0.05
    assert FigureOptions(Slo(itl=0.05)).target_itl(0.2) == 0.2
    assert FigureOptions(Slo(itl=86400.0)).target_itl(None) == 3600.0
