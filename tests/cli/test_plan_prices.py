"""Prices of `penstock plan` as users give them, and as lists have them."""

import json
import re
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.cli.plan import Wanted, run_plan
from penstock.cli.plan_options import DeploymentOptions, MoneyOptions
from penstock.cli.plan_prices import installed_prices
from penstock.cli.plan_workloads import Requests
from penstock.core.errors import PenstockError
from penstock.planning.prices import DevicePrice, PriceList

WANTED = Wanted(requests=Requests(1024, 256), concurrency=8, static=False, slo=None, rate=None)


def planned(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["plan", "haiku", "--json", "-", *arguments])
    assert result.exit_code == 0, result.output
    plan: dict[str, Any] = json.loads(result.stdout)
    return plan


def said(capsys: pytest.CaptureFixture[str], today: date, **money: Any) -> str:
    """What a plan prints on a day, each run of spaces and ends of lines as one space."""
    run_plan("haiku", DeploymentOptions(on="h100"), WANTED, MoneyOptions(**money), None, today=today)
    return re.sub(r"\s+", " ", capsys.readouterr().out)


def test_without_a_price_the_list_is_asked() -> None:
    listed, reserved, given = (
        planned("--on", "h100", *more)["money"] for more in ((), ("--price", "reserved"), ("--price", "1.25"))
    )
    assert listed["device_price"]["kind"] == "on-demand"
    assert listed["device_price"]["low"] < listed["device_hour"] < listed["device_price"]["high"]
    assert reserved["device_price"]["kind"] == "reserved" and reserved["device_hour"] < listed["device_hour"]
    assert given["device_hour"] == 1.25 and given["device_price"] is None
    # Where a list has none by the hour, the next kind.
    assert planned("--on", "mi300x")["money"]["device_price"]["kind"] == "reserved"


def test_a_device_without_a_price_has_no_costs_and_that_is_told() -> None:
    plan = planned("--on", "l4")
    assert plan["money"] is None
    assert any(note.startswith("No price of L4 is known here") for note in plan["notes"])


def test_a_date_stands_beside_a_price_and_an_old_one_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = DevicePrice("H100 SXM", "on-demand", 1.5, 2.0, 3.0, "2030-01-01", "made up")
    monkeypatch.setattr("penstock.cli.plan_prices.LISTED", PriceList("the list of Penstock", (row,)))
    new = said(capsys, date(2030, 4, 1))
    assert "$2.00 an hour for one H100 SXM (on-demand, as of 2030-01-01, 1.50 to 3.00)" in new
    assert "days ago" not in new
    old = said(capsys, date(2030, 4, 2))
    assert "Note: The price of H100 SXM (on-demand) is of 2030-01-01, 91 days ago, and prices move" in old
    # A price that one gives has no date.
    assert "days ago" not in said(capsys, date(2030, 4, 2), price="2.5")


def test_a_model_of_the_list_and_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    before = said(capsys, date(2026, 11, 26), price="2", api_price="gpt-5-mini")
    assert "(gpt-5-mini: $0.25 a million input tokens, $2 output, as of 2026-11-01)" in before
    assert "gpt-5-mini is served until 2026-12-11" in before
    after = said(capsys, date(2027, 6, 1), price="2", api_price="gpt-5-mini")
    assert "gpt-5-mini is not served since 2026-12-11" in after
    assert "The price of gpt-5-mini is of 2026-11-01, 212 days ago" in after


def test_a_file_of_prices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "mine.csv"
    table.write_text("model,input,output,device,hour,as_of\nmine,0.5,1.5,,,2026-11-01\n,,,h100,1.75,2026-11-02\n")
    told = said(capsys, date(2026, 11, 26), prices=str(table), api_price="mine")
    assert "$1.75 an hour for one H100 SXM (on-demand, as of 2026-11-02)" in told
    assert "(mine: $0.5 a million input tokens, $1.5 output, as of 2026-11-01)" in told
    # What a file does not have is in the list.
    assert "(gpt-5-mini: $0.25" in said(capsys, date(2026, 11, 26), prices=str(table), api_price="gpt-5-mini")
    table.write_text("model,input,output,as_of\nmine,0.5,1.5,2026-02-30\n")
    with pytest.raises(PenstockError, match="2026-02-30 is no day of the calendar"):
        said(capsys, date(2026, 11, 26), prices=str(table), api_price="mine")


@pytest.fixture
def litellm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of that name that cannot be imported, with prices."""
    package = tmp_path / "packages" / "litellm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('nothing imports this')")
    entry = {"input_cost_per_token": 3e-06, "output_cost_per_token": 9e-06}
    (package / "model_prices_and_context_window_backup.json").write_text(json.dumps({"made-up-1": entry}))
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, "litellm", raising=False)
    return package


def test_an_installed_litellm_is_read_and_not_imported(litellm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in ({}, {"prices": "litellm"}):
        told = said(capsys, date(2026, 11, 26), price="2", api_price="made-up-1", **more)
        assert "(made-up-1: $3 a million input tokens, $9 output)" in told
        assert re.search("The price of made-up-1 is from the installed litellm.*, which says no date", told)
    assert "litellm" not in sys.modules
    (litellm / "model_prices_and_context_window_backup.json").unlink()
    assert installed_prices() is None


def test_no_litellm_is_needed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "$0.25 a million" in said(capsys, date(2026, 11, 26), price="2", api_price="gpt-5-mini")
    with pytest.raises(PenstockError, match="the library is not installed here"):
        said(capsys, date(2026, 11, 26), price="2", prices="litellm", api_price="gpt-5-mini")


def test_buying_stands_beside_renting() -> None:
    money = planned("--on", "h100", "--price", "2", "--buy", "25000,years=5,kwh=0.2")["money"]
    assert money["owning"]["purchase"] == {
        "dollars": 25000.0,
        "years": 5.0,
        "watts": 700.0,
        "pue": 1.3,
        "kwh": 0.2,
        "upkeep": 0.0,
    }
    assert money["owning"]["power_month"] == pytest.approx(0.7 * 1.3 * 0.2 * 730)
    assert any(decision["question"] == "Rent or buy?" for decision in money["decisions"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--price", "cheap"],
            "--price 'cheap' is neither dollars an hour for a device nor one of on-demand",
        ),
        (["--price", "inf"], "--price inf is no price"),
        (["--price", "nan"], "--price nan is no price"),
        (["--price=-1"], "--price -1 is no price"),
        (["--operations", "inf"], "--operations is a finite number"),
        (["--utilisation", "0"], "--utilisation 0 is no part; give more than 0, up to 1"),
        (["--utilisation", "80"], "--utilisation 80 is no part"),
        (["--utilisation", "0.5", "--rate", "1"], "--utilisation is what --rate, or a trace's, comes to"),
        (["--api-price", "1"], "--api-price '1' is no pair of prices"),
        (["--api-price", "1,x"], "--api-price '1,x' is no model"),
        (["--api-price", "1,-2"], "--api-price '1,-2' is no pair"),
        (["--api-price", "nan,1"], "--api-price 'nan,1' is no pair"),
        (["--api-price", "cheap"], "--api-price 'cheap' is no model in the list of Penstock"),
        (["--api-price", "gpt-5-mni"], "Near it are gpt-5-mini"),
        (["--api-price", "0,0"], "An API that costs nothing is never dearer"),
        (["--api-price", "llama-3.3-70b-instruct"], "is served by several hosts, so name one: nebius/"),
        (["--prices", "/nowhere.csv"], "--prices /nowhere.csv cannot be read: No such file"),
        (["--prices", "MINE"], "Nothing of --prices"),
        (["--prices", "MINE", "--price", "1", "--api-price", "gpt-5"], "--api-price names no model of it"),
        (["--buy", "much"], "--buy: 'much' is no dollars; write dollars a device, as in 25000 or"),
        (["--buy", "0"], "--buy: '0' is no dollars"),
        (["--buy", "25000,years=0"], "--buy: '0' is no years"),
        (["--buy", "25000,year=3"], "--buy: 'year=3' is not known or there twice"),
        (["--buy", "25000,years=3,years=4"], "--buy: 'years=4' is not known or there twice"),
        (["--buy", "25000,dollars=3"], "--buy: 'dollars=3' is not known"),
        (["--buy", "25000,pue=0.9"], "a pue of 0.9 is less power than the machines take"),
        (["--buy", "25000", "--price", "own"], "--price own is no rent"),
        (["--buy", "25000", "--price", "0"], "give a rent above zero"),
    ],
)
def test_prices_that_make_no_sense_are_one_sentence(tmp_path: Path, arguments: list[str], told: str) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text("model,input,output\nmine,1,2\n")
    given = [str(mine) if argument == "MINE" else argument for argument in arguments]
    result = CliRunner().invoke(app, ["plan", "haiku", "--on", "h100", *given])
    assert isinstance(result.exception, PenstockError), result.output
    assert told in result.exception.message


@pytest.mark.parametrize(
    "arguments", [["--api-price", "1,2"], ["--operations", "5"], ["--utilisation", "0.5"], ["--buy", "1000"]]
)
def test_what_has_no_effect_without_a_price_of_the_device_is_told(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["plan", "haiku", "--on", "l4", *arguments])
    assert isinstance(result.exception, PenstockError)
    assert result.exception.message.startswith(f"{arguments[0]} needs the price of a device, and none of L4 is known")
    result = CliRunner().invoke(app, ["plan", "haiku", "--on", "l4", "--price", "reserved"])
    assert "there is no such price of L4, no price of it is known here" in str(result.exception)


def test_the_list_has_the_prices() -> None:
    listed = CliRunner().invoke(app, ["plan", "--list"]).stdout
    assert "gpt-5-mini" in listed and "on-demand" in listed and "2026-11-01" in listed


def test_neither_numpy_nor_torch_is_needed() -> None:
    import subprocess

    code = "import sys; sys.modules['torch'] = sys.modules['numpy'] = None; from penstock.cli.main import main; main()"
    command = [sys.executable, "-c", code, "plan", "haiku", "--on", "h100", "--api-price", "gpt-5-mini"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
