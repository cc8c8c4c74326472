"""Which files the page is made of, by the path at which each answers, with a key or without."""

_PARTS = (
    "style.css",
    "icon.svg",
    "app.js",
    "api.js",
    "dom.js",
    "words.js",
    "charts.js",
    "live.js",
    "account.js",
    "requests.js",
    "chat.js",
)
PAGE_FILES = {"/": "index.html", **{f"/page/{name}": name for name in _PARTS}}
