"""Links of the documents resolve, pages are reachable, and what they name is there: options, errors, files, figures."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from penstock.cli.main import app
from penstock.core.errors import Overloaded, PenstockError, StartupError
from penstock.server.app import create_app

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PEERS = ROOT / "docs" / "benchmarks" / "peers.md"
FIGURES = "## Penstock int4 against the best mode of all peers"
PAGES = [
    README,
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
    *sorted((ROOT / "training").glob("*.md")),
    *sorted((ROOT / "src" / "penstock" / "bundled" / "models").rglob("*.md")),
]
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
# The page that describes a command. Options of `penstock serve` are described once, for all commands that have them.
TENANT_COMMANDS = (
    "add",
    "list",
    "set",
    "split",
    "close",
    "keys",
    "rotate",
    "revoke",
    "audit",
    "price",
    "spending",
    "statement",
    "migrate",
)
OPTIONS = {
    "serve": "serve.md",
    "run": "serve.md",
    "gateway": "gateway.md",
    "key": "serve.md",
    **{f"tenant {each}": "tenants.md" for each in TENANT_COMMANDS},
    **{f"cache {each}": "caching.md" for each in ("list", "clear", "warm", "explain", "export")},
    **{f"fleet {each}": "fleet.md" for each in ("up", "render", "status", "scale", "drain", "update", "down")},
    "fleet autoscale": "fleet.md",
    "models": "models.md",
    "quantize": "quantization.md",
    "evaluate": "quantization.md",
    "explain": "explain.md",
    "doctor": "doctor.md",
    "metrics": "metrics.md",
    "plan": "plan.md",
    "simulate": "plan.md",
    "calibrate": "plan.md",
    "join": "parallel.md",
    "bench serve": "load-testing.md",
    "bench engine": "load-testing.md",
    "bench kernels": "load-testing.md",
    "bench speculation": "speculation.md",
}


def relative_links(page: Path) -> Iterator[tuple[Path, str]]:
    """(file, anchor) of every link that leads neither to another site nor to a mail address."""
    for target in LINK.findall(CODE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        yield (page.parent / path).resolve() if path else page, anchor


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links, by GitHub's rule."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(group: TyperGroup) -> Iterator[tuple[str, TyperCommand]]:
    """(name, command) of all commands, such as ("bench serve", …)."""
    for name, child in group.commands.items():
        if isinstance(child, TyperGroup):
            yield from ((f"{name} {inner}", command) for inner, command in commands(child))
        elif isinstance(child, TyperCommand):
            yield name, child


MAIN = get_command(app)
assert isinstance(MAIN, TyperGroup)
COMMANDS = dict(commands(MAIN))


def options(name: str) -> list[tuple[str, ...]]:
    """The spellings of each option of a command; a pair such as --search and --no-search is one option."""
    return [
        (*each.opts, *each.secondary_opts)
        for each in COMMANDS[name].params
        if isinstance(each, TyperOption) and not each.hidden and "--help" not in each.opts
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}#{anchor}" if path.exists() else str(path)
        for path, anchor in relative_links(page)
        if not path.exists() or (anchor and anchor not in anchors(path))
    ]
    assert not wrong


def test_every_page_is_reached_from_the_readme() -> None:
    reached, ahead = {README}, [README]
    while ahead:
        for path, _ in relative_links(ahead.pop()):
            if path.suffix == ".md" and path not in reached:
                reached.add(path)
                ahead.append(path)
    assert set((ROOT / "docs").rglob("*.md")) <= reached


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_in_the_documents(name: str) -> None:
    page = (ROOT / "docs" / OPTIONS[name]).read_text()
    shared = [] if name == "serve" else options("serve")
    told = set(re.findall(r"--[a-z][a-z-]*", page))
    missing = [spellings for spellings in options(name) if spellings not in shared and not told & {*spellings}]
    assert not missing, f"docs/{OPTIONS[name]} does not say what they do"


def test_every_option_of_the_tables_exists() -> None:
    rows = re.findall(r"^\| (`--[^|]*) \|", (ROOT / "docs" / "serve.md").read_text(), flags=re.MULTILINE)
    told = {option for row in rows for option in re.findall(r"--[a-z][a-z-]*", row)}
    real = {spelling for name in ("serve", "run", "key") for each in options(name) for spelling in each}
    assert len(told) > 50 and told <= real


def kinds(error: type[PenstockError]) -> Iterator[type[PenstockError]]:
    """A class of errors, and all below it."""
    yield error
    for below in error.__subclasses__():
        yield from kinds(below)


def test_every_error_that_clients_get_is_in_the_documents() -> None:
    assert create_app, "the classes of its rooms are below PenstockError once it is imported"
    never = {Overloaded, *kinds(StartupError)}
    table = (ROOT / "docs" / "api.md").read_text().partition("## Errors\n")[2]
    missing = {error.code for error in kinds(PenstockError) if error not in never and f"`{error.code}`" not in table}
    assert not missing, "docs/api.md does not say what they mean"


def test_what_the_architecture_names_is_there() -> None:
    """Files, and of `file.py: Name.method` the names."""
    sources = [
        *(ROOT / "src" / "penstock").rglob("*.py"),
        *(ROOT / "native" / "src").iterdir(),
        *ROOT.glob("tests/**/*.py"),
    ]
    named = re.findall(r"`([\w/]+\.(?:py|cpp|hpp))(?:: ([\w.]+))?`", (ROOT / "docs" / "architecture.md").read_text())
    missing = []
    for file, name in named:
        texts = [path.read_text() for path in sources if path.as_posix().endswith(f"/{file}")]
        words = name.split(".") if name else []
        if not any(all(re.search(rf"\b{word}\b", text) for word in words) for text in texts):
            missing.append(f"{file}: {name}")
    assert len(named) > 80 and not missing


def test_the_readme_has_the_figures_of_the_newest_run() -> None:
    table = PEERS.read_text().partition(f"{FIGURES}\n\n")[2].partition("\n\n")[0]
    assert table.startswith("|") and table in README.read_text(), "copy this table of docs/benchmarks/peers.md"
