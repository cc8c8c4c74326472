"""The files of the page. They hold no data, so they need no key: what the page shows, it asks the API for."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.server.page.files import PAGE_FILES

_MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing but what this server has, nothing inline, no text that is taken for code, and in no other page's frame.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # A browser asks each time whether it has the newest, since all files must be of one release.
    "cache-control": "no-cache",
}


class PageFile:
    """The endpoint of one file, which is read at the start."""

    def __init__(self, file: Path) -> None:
        self._body = file.read_bytes()
        self._tag = f'"{hashlib.sha256(self._body).hexdigest()[:32]}"'
        self._headers = {**_HEADERS, "etag": self._tag, "content-type": _MEDIA[file.suffix]}

    async def get(self, request: Request) -> Response:
        """The file, or 304 where the browser has it."""
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if self._tag in known or "*" in known:
            return Response(status_code=304, headers=_HEADERS | {"etag": self._tag})
        return Response(self._body, headers=self._headers)


def page_routes(files: Mapping[str, Path] = PAGE_FILES) -> list[Route]:
    """The page at `/`, which the API's description has, and its parts, which it does not."""
    return [
        Route(path, PageFile(file).get, methods=["GET"], include_in_schema=path == "/") for path, file in files.items()
    ]
