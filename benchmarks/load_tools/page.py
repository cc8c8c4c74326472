"""The page of a comparison, in Markdown."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import reporting
from load_tools.agreement import CLOSE, Comparison
from load_tools.tools import Load


@dataclass(frozen=True)
class Setting:
    """Where and how a comparison ran; `saturation` is in requests a second."""

    machine: str
    server_cores: Sequence[int]
    client_cores: Sequence[int]
    saturation: float
    share: float
    rounds: int
    arguments: Sequence[str]


@dataclass(frozen=True)
class Section:
    """One tool's part."""

    name: str
    version: str
    command: Sequence[str]
    own_command: Sequence[str]
    input_tokens: float
    own_input_tokens: float
    comparisons: Sequence[Comparison]


_HEADER = ("figure", "theirs, median", "least to greatest", "ours, median", "ratio", "within 5%", "within their spread")


def page(setting: Setting, load: Load, sections: Sequence[Section]) -> str:
    """The whole page."""
    title = "# `penstock bench serve` and other load generators\n"
    called = shlex.join(["python", "benchmarks/compare_load_tools.py", *setting.arguments])
    command = f"This command writes the page:\n\n```\n{called}\n```\n"
    return "\n".join([title, command, _how(setting, load), *(_section(section) for section in sections)])


def agree(sections: Sequence[Section]) -> bool:
    """Whether all figures of all tools do."""
    return all(comparison.agrees for section in sections for comparison in section.comparisons)


def _how(setting: Setting, load: Load) -> str:
    server, clients = _cores(setting.server_cores), _cores(setting.client_cores)
    lengths = f"{load.input_tokens} tokens in, {load.output_tokens} out (`ignore_eos`)"
    return f"""{setting.machine}; the server on {server}, clients on {clients}.

`penstock serve {load.model} --speculative off`, `/v1/completions`: {lengths}.
Saturation is the throughput of a closed loop, {setting.saturation:.3g} requests/s. The load is {setting.share:.0%}
of that: {load.rate:.3g} requests/s, {load.requests} requests in a run.

{setting.rounds} rounds, each with another seed. The other tool draws Poisson arrivals. Then `penstock bench serve`
sends its requests at the same times, so that both measure the same load. Our figures use the other tool's definitions.
They agree if the medians are within {CLOSE:.0%}, or ours is within the range of the other tool's runs.
"""


def _cores(cores: Sequence[int]) -> str:
    return f"core{'s' if len(cores) > 1 else ''} {', '.join(map(str, cores))}"


def _section(section: Section) -> str:
    rows = [
        (
            each.figure,
            _number(each.theirs),
            f"{_number(each.least)} to {_number(each.greatest)}",
            _number(each.ours),
            f"{each.ratio:.3f}",
            "yes" if each.is_close else "no",
            "yes" if each.is_within_spread else "no",
        )
        for each in section.comparisons
    ]
    differing = [each.figure for each in section.comparisons if not each.agrees]
    verdict = f"They do not agree on: {', '.join(differing)}." if differing else "They agree."
    lengths = (
        f"Tokens of a prompt, as the server counts them: {section.input_tokens:.1f} and {section.own_input_tokens:.1f}."
    )
    commands = f"```\n{shlex.join(section.command)}\n{shlex.join(section.own_command)}\n```"
    table = reporting.table(_HEADER, rows)
    return f"## {section.name} {section.version}\n\n{commands}\n\n{table}\n\n{verdict} {lengths}\n"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
