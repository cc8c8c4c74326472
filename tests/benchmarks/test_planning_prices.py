"""The list prices that come with the package, from tables."""

from pathlib import Path

import planning_prices
import pytest


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("2026-04-03", "2026-04-03"),
        ("2026-05", "2026-05-01"),
        ("2026-11 (package download)", "2026-11-01"),
        ("2025 (v8 snapshot)", "2025-01-01"),
        ("2026-Q3 (page)", "2026-07-01"),
        ("2026-early", "2026-01-01"),
    ],
)
def test_no_price_looks_newer_than_it_may_be(text: str, day: str) -> None:
    assert planning_prices.first_day(text) == day


def test_prices_of_the_newest_date_with_their_ends_and_middle(tmp_path: Path) -> None:
    table = tmp_path / "gpu_prices.csv"
    table.write_text(
        "gpu,provider,kind,usd_per_gpu_hour,as_of,source,notes\n"
        "H100 SXM5,old,on demand,12.00,2025-05,there,\n"
        "H100 SXM5,clouds,on demand range,2.00-3.00,2026-05,here,\n"
        "H100 SXM5,others,on demand range,3.00-5.00,2026-05,here,\n"
        "H100 SXM5,third,spot,0.50,2026-06,here,\n"
        "H100 SXM5,one,3-year rental,1.30,2026-04-03,there,\n"
        "L4,one,on demand,0.40,2026-05,here,\n"
    )
    hour, leased, small = planning_prices.device_prices(table)
    assert (hour.device, hour.kind, hour.low, hour.dollars, hour.high) == ("H100 SXM", "on-demand", 2.0, 3.25, 5.0)
    assert (hour.as_of, hour.source) == ("2026-05-01", "here")
    assert (leased.kind, leased.dollars) == ("reserved", 1.3) and small.device == "L4"
    with table.open("a") as file:
        file.write("H100 SXM5,median of 9,on demand,2.95,2026-05,index,\n")
    assert next(planning_prices.device_prices(table)).dollars == 2.95
