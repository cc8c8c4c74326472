"""The files of the live page, over HTTP: what a browser is told of them, and that they need nothing else."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

import penstock.server.page
from penstock.server.page.files import PAGE_FILES

FOLDER = Path(penstock.server.page.__file__).with_name("static")


def test_all_files_are_served_and_no_others() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {path.name for path in PAGE_FILES.values()}


@pytest.mark.parametrize("path", PAGE_FILES)
def test_a_file_comes_with_what_a_browser_has_to_know(served: Any, path: str) -> None:
    answer = served.http.get(path)
    assert answer.status_code == 200
    assert answer.text == PAGE_FILES[path].read_text()
    media = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    assert answer.headers["content-type"].startswith(media[PAGE_FILES[path].suffix[1:]])
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert set(policy.values()) == {"'none'", "'self'", "'script'"}, "no other server, nothing inline, no eval"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", PAGE_FILES)
def test_a_file_is_asked_for_again_and_sent_only_when_it_is_another(served: Any, path: str) -> None:
    answer = served.http.get(path)
    tag = answer.headers["etag"]
    assert answer.headers["cache-control"] == "no-cache"
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        # Of HTTP, and so not in the API's description.
        again = httpx.get(served.url + path, headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b""), known
        assert again.headers["etag"] == tag
        assert again.headers["content-security-policy"] == answer.headers["content-security-policy"]
    assert served.http.get(path, headers={"if-none-match": '"other"'}).status_code == 200


def test_nothing_is_inline_and_all_is_found() -> None:
    check_sources(PAGE_FILES)


def check_sources(files: Mapping[str, Path]) -> None:
    """What a page is made of comes from nowhere else, is no markup or code by accident, and is all there."""
    sources = {path.name: path.read_text() for path in files.values()}
    page = sources["index.html"]
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page)
    assert all('src="page/' in tag for tag in re.findall(r"<script[^>]*>", page))
    named = set(re.findall(r'(?:src|href)="(page/[^"]+)"', page))
    imported = {f"page/{name}" for text in sources.values() for name in re.findall(r'from "\./([^"]+)"', text)}
    assert {f"/{name}" for name in named | imported} == files.keys() - {"/"}, "each file has a use"
    there = set(re.findall(r'\sid="([^"]+)"', page))
    for name, text in sources.items():
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|url\(", text), name
        found = re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc", text)
        assert found is None, f"{name} has {found}"
        assert "localStorage" not in text and "document.cookie" not in text, "a key is kept in the tab alone"
        assert there >= set(re.findall(r'byId\("([^"]+)"\)', text)), name
