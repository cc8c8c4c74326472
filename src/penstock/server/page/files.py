"""Which files the page is made of, by the path at which each answers, with a key or without."""

from collections.abc import Sequence
from pathlib import Path

_FOLDER = Path(__file__).with_name("static")
# What the pages of servers and gateways have in common.
SHARED_PARTS = (
    "style.css",
    "icon.svg",
    "shell.js",
    "api.js",
    "dom.js",
    "words.js",
    "charts.js",
    "account.js",
    "recent.js",
    "chat.js",
)


def page_files(folder: Path, parts: Sequence[str]) -> dict[str, Path]:
    """Those of a page whose own parts are in a folder, its `index.html` among them."""
    own = {f"/page/{name}": folder / name for name in parts}
    return {"/": folder / "index.html", **own, **{f"/page/{name}": _FOLDER / name for name in SHARED_PARTS}}


PAGE_FILES = page_files(_FOLDER, ("app.js", "live.js", "requests.js"))
