"""`penstock tenant price`, asked of a running replica."""

import subprocess
import tomllib
from collections.abc import Callable

import httpx

from support.live_server import serving

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_what_a_replica_says_of_its_tokens(penstock_here: Run) -> None:
    with serving(None, "--cost-per-hour", "2") as server:
        early = penstock_here("tenant", "price", server.base)
        assert early.returncode == 2 and "has measured nothing yet" in early.stderr
        with httpx.Client(base_url=server.base, timeout=600) as http:
            for _ in range(2):
                http.post("/v1/completions", json={"prompt": "the fox", "max_tokens": 8}).raise_for_status()
        told = penstock_here("tenant", "price", server.base, "--busy", "0.5")
        assert told.returncode == 0, told.stderr
        [table] = tomllib.loads(told.stdout, parse_float=str)["price"]
        prices = {name: float(table[name]) for name in ("input", "cached", "output")}
        assert prices["cached"] == 0 < prices["input"] and prices["output"] > 0
        assert table["model"] == "haiku"
        dearer = penstock_here("tenant", "price", server.base, "--busy", "0.25", "--cost-per-hour", "4").stdout
        [table] = tomllib.loads(dearer, parse_float=str)["price"]
        assert float(table["input"]) > 3 * prices["input"]
        assert "no number" in penstock_here("tenant", "price", server.base, "--cost-per-hour", "a").stderr
