"""The list prices that come with Penstock: `python benchmarks/planning_prices.py --tables DIR`.

DIR has `gpu_prices.csv` (dollars an hour for one GPU, by provider and kind) and `api_prices.csv` (dollars a million
tokens at APIs, from LiteLLM's price file, MIT). Writes `src/penstock/planning/listed.py`. Of a device on demand, only
rows of the newest date count; spot prices and indices of other lists are left out. Nothing is fetched.
"""

import argparse
import csv
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from penstock.core.errors import ConfigurationError
from penstock.planning.hardware import DEVICES, device_of
from penstock.planning.prices import ApiPrice, DevicePrice, Kind

LISTED = Path(__file__).resolve().parents[1] / "src" / "penstock" / "planning" / "listed.py"
# Names of the table that the package has otherwise.
_OTHER_NAMES = {
    "A100 80 PCIe": "A100 80GB PCIe",
    "A100 80 SXM": "A100 80GB SXM",
    "GB200 (NVL72)": "GB200",
    "GB300 (NVL72)": "GB300",
    "V100 SXM2 16/32": "V100 SXM2",
}
_KINDS: dict[str, Kind] = {
    "owning, hyperscaler TCO": "own",
    "owning, neocloud TCO": "own",
    "3-year rental": "reserved",
    "on demand": "on-demand",
    "on demand range": "on-demand",
}
_QUARTERS = {"Q1": "01", "Q2": "04", "Q3": "07", "Q4": "10"}
# Closed models that open ones are compared with, and hosts of open models.
_NAMES = """
gpt-4.1 gpt-4.1-mini gpt-4o gpt-4o-mini gpt-5 gpt-5-mini gpt-5-nano gpt-5.4 gpt-5.4-mini gpt-5.6 gpt-5.6-luna
gpt-6-luna gpt-6-sol gpt-6.1-sol gpt-6.1-terra gpt-6-astra
claude-haiku-4-5 claude-haiku-5-5 claude-sonnet-4-5 claude-sonnet-5-5 claude-opus-4-8 claude-opus-5-5
gemini/gemini-2.5-flash gemini/gemini-2.5-pro gemini/gemini-3.5-flash-lite gemini/gemini-3.8-flash
gemini/gemini-3.1-pro-preview gemini/gemini-4-argon gemini/gemini-4-hydrogen
mistral/mistral-large-4 mistral/mistral-medium-3.5 mistral/mistral-small-latest mistral/open-mistral-nemo
deepseek/deepseek-chat deepseek/deepseek-v4-flash deepseek/deepseek-v4-pro
xai/grok-4.3 xai/grok-4.7 command-a-03-2025 command-r7b-12-2024
moonshot/kimi-k2.6 moonshot/kimi-k3 zai/glm-5.3 zai/glm-5.3-flash minimax/MiniMax-M3
deepinfra/meta-llama/Meta-Llama-3.1-8B-Instruct deepinfra/meta-llama/Llama-3.3-70B-Instruct
deepinfra/meta-llama/Llama-3.3-70B-Instruct-Turbo deepinfra/Qwen/Qwen2.5-72B-Instruct deepinfra/Qwen/Qwen3-32B
deepinfra/Qwen/Qwen3-30B-A3B deepinfra/Qwen/Qwen3-235B-A22B-Instruct-2507 deepinfra/google/gemma-3-27b-it
deepinfra/deepseek-ai/DeepSeek-V3.2 deepinfra/deepseek-ai/DeepSeek-R1-0528 deepinfra/openai/gpt-oss-120b
deepinfra/openai/gpt-oss-20b
together_ai/meta-llama/Llama-3.3-70B-Instruct-Turbo together_ai/openai/gpt-oss-120b
groq/openai/gpt-oss-120b groq/openai/gpt-oss-20b cerebras/gpt-oss-120b cerebras/llama-3.1-8b
nebius/meta-llama/Meta-Llama-3.1-8B-Instruct nebius/meta-llama/Llama-3.3-70B-Instruct
nebius/meta-llama/Meta-Llama-3.1-405B-Instruct nebius/Qwen/Qwen3-32B nebius/Qwen/Qwen3-30B-A3B
novita/meta-llama/llama-3.3-70b-instruct
"""
MODELS = _NAMES.split()
HEAD = '''"""List prices of devices and of APIs' models, with their dates.

`benchmarks/planning_prices.py` writes this file. Prices of models are a part of LiteLLM's price file (Copyright (c)
2023 Berri AI, MIT), those of devices were read in the sources that each row names.
"""

from penstock.planning.prices import ApiPrice, DevicePrice, PriceList

'''


def first_day(text: str) -> str:
    """The first day of what a table says of a date, so that no price looks newer than it may be."""
    year = text[:4]
    quarter = re.search(r"Q[1-4]", text)
    if quarter:
        return f"{year}-{_QUARTERS[quarter[0]]}-01"
    dated = re.match(r"\d{4}(-\d{2}(-\d{2})?)?", text)
    assert dated is not None, text
    return f"{dated[0]}-01-01"[:10] if len(dated[0]) < 10 else dated[0]


def device_prices(path: Path) -> Iterator[DevicePrice]:
    """One price for each device and kind, in the order of the table of devices."""
    rows: dict[tuple[str, Kind], list[dict[str, str]]] = defaultdict(list)
    for row in csv.DictReader(path.read_text().splitlines()):
        if row["kind"] in _KINDS:
            name = row["gpu"]
            rows[device_of(_OTHER_NAMES.get(name, name)).name, _KINDS[row["kind"]]].append(row)
    for device in DEVICES:
        for kind in ("on-demand", "reserved", "own"):
            found = rows.get((device.name, kind))
            if found:
                yield one_price(device.name, kind, found)


def one_price(device: str, kind: Kind, rows: list[dict[str, str]]) -> DevicePrice:
    """The ends and the middle of the rows of the newest date: a published median, else that of what each row says."""
    newest = max(first_day(row["as_of"]) for row in rows)
    rows = [row for row in rows if first_day(row["as_of"]) == newest]
    ends = [[float(end) for end in row["usd_per_gpu_hour"].split("-")] for row in rows]
    published = [end[0] for end, row in zip(ends, rows, strict=True) if row["provider"].startswith("median of")]
    middle = published[0] if published else median(sum(each) / len(each) for each in ends)
    every = [end for each in ends for end in each]
    sources = dict.fromkeys(row["source"].removesuffix("/") for row in rows)
    return DevicePrice(device, kind, min(every), round(middle, 4), max(every), newest, ", ".join(sources))


def api_prices(path: Path) -> Iterator[ApiPrice]:
    """The chosen models, in the order of their names here. Ends where one is not in the table."""
    rows = {row["model"]: row for row in csv.DictReader(path.read_text().splitlines())}
    missing = [name for name in MODELS if name not in rows]
    if missing:
        sys.exit(f"{path} has no {', '.join(missing)}.")
    for name in MODELS:
        row = rows[name]
        cached, discount = row["cached_input_usd_per_m"], row["batch_discount"]
        yield ApiPrice(
            input=float(row["input_usd_per_m"]),
            output=float(row["output_usd_per_m"]),
            cached=float(cached) if cached else None,
            model=name,
            batch_discount=float(discount) if discount else 0.0,
            deprecated=row["deprecation_date"],
            as_of=first_day(row["as_of"]),
            source=row["source"],
        )


def written(devices: list[DevicePrice], models: list[ApiPrice]) -> str:
    """The module's text; sources and dates, which many rows share, are named once."""
    shared = {text: f"_SOURCE_{number}" for number, text in enumerate(dict.fromkeys(row.source for row in devices), 1)}
    lines = [HEAD, *(f"{name} = {text!r}\n" for text, name in shared.items())]
    ((as_of, source),) = {(model.as_of, model.source) for model in models}
    lines += [f"_AS_OF = {as_of!r}\n_MODELS = {source!r}\n", "\n\n"]
    lines += [
        "def _model(\n    model: str, given: float, cached: float | None, made: float, discount: float = 0.0, "
        'deprecated: str = ""\n) -> ApiPrice:\n',
        '    """Dollars a million tokens: of input, of input that is cached, and of output."""\n',
        "    return ApiPrice(given, made, cached, model, discount, deprecated, _AS_OF, _MODELS)\n\n\n",
    ]
    lines += ["DEVICE_PRICES: tuple[DevicePrice, ...] = (\n"]
    for row in devices:
        figures = f"{row.device!r}, {row.kind!r}, {row.low!r}, {row.dollars!r}, {row.high!r}, {row.as_of!r}"
        lines.append(f"    DevicePrice({figures}, {shared[row.source]}),\n")
    lines += [")\n", "API_PRICES: tuple[ApiPrice, ...] = (\n"]
    for model in models:
        end = f", {model.batch_discount!r}" if model.batch_discount or model.deprecated else ""
        end += f", {model.deprecated!r}" if model.deprecated else ""
        lines.append(f"    _model({model.model!r}, {model.input!r}, {model.cached!r}, {model.output!r}{end}),\n")
    lines += [")\n", 'LISTED = PriceList("the list of Penstock", DEVICE_PRICES, API_PRICES)\n']
    return "".join(lines)


def main() -> None:
    """Write the module anew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, required=True, metavar="DIR", help="the folder of the tables")
    tables = parser.parse_args().tables
    try:
        devices, models = list(device_prices(tables / "gpu_prices.csv")), list(api_prices(tables / "api_prices.csv"))
    except (OSError, ConfigurationError) as error:
        sys.exit(str(error))
    LISTED.write_text(written(devices, models))
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", LISTED], check=True)
    print(f"{len(devices)} prices of devices and {len(models)} of models are in {LISTED.name}.")


if __name__ == "__main__":
    main()
