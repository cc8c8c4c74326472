"""A guardrail for `penstock gateway` that keeps personal data from models, found by Presidio.

    pip install presidio-analyzer
    python personal_data.py 9100

In requests it is replaced by its kind, such as <EMAIL_ADDRESS>; answers with it are denied.
"""

import json
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KINDS = ["EMAIL_ADDRESS", "PHONE_NUMBER", "CREDIT_CARD", "IBAN_CODE", "IP_ADDRESS"]
# Where each one begins and ends in a text, and its kind.
Find = Callable[[str], list[tuple[int, int, str]]]


def presidio() -> Find:
    """Presidio's patterns, which need no trained model; names and places need one, such as en_core_web_lg."""
    import spacy
    from presidio_analyzer import AnalyzerEngine
    from presidio_analyzer.nlp_engine import SpacyNlpEngine

    language = SpacyNlpEngine()
    language.nlp = {"en": spacy.blank("en")}
    engine = AnalyzerEngine(nlp_engine=language, supported_languages=["en"])

    def find(text: str) -> list[tuple[int, int, str]]:
        found = engine.analyze(text, language="en", entities=KINDS)
        return [(each.start, each.end, each.entity_type) for each in found]

    return find


def masked(value: Any, find: Find) -> Any:
    """A request's body without what is found in any of its texts."""
    if isinstance(value, dict):
        return {name: each if name == "model" else masked(each, find) for name, each in value.items()}
    if isinstance(value, list):
        return [masked(each, find) for each in value]
    if not isinstance(value, str):
        return value
    passed, until = [], 0
    for start, end, kind in sorted(find(value)):
        if end > until:
            passed += [value[until : max(start, until)], f"<{kind}>"]
            until = end
    return "".join(passed) + value[until:]


def verdict(asked: dict[str, Any], find: Find) -> dict[str, Any]:
    """What to say to a gateway's question."""
    if asked["when"] == "before":
        body = masked(asked["body"], find)
        return {"action": "allow"} if body == asked["body"] else {"action": "replace", "body": body}
    kinds = sorted({kind for _, _, kind in find(asked["text"])})
    return {"action": "deny", "reason": f"It has personal data: {', '.join(kinds)}."} if kinds else {"action": "allow"}


def server(port: int, find: Find) -> ThreadingHTTPServer:
    """Answers gateways of this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            said = json.dumps(verdict(asked, find)).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    server(int(sys.argv[1]), presidio()).serve_forever()
