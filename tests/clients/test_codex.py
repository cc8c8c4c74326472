"""Codex, unchanged, does a task with a model that is served in OpenAI's newer dialect."""

import json

from support.coding_agents import AFTER, Endpoint, WatchedModel, Workplace, run_codex
from support.seen_requests import Seen
from support.speaking_model import Turn, by_results

RESPONSES = Seen("POST", "/v1/responses", 200, "text/event-stream")
PATCH = """apply_patch <<'EOF'
*** Begin Patch
*** Update File: calc.py
@@
 def add(a, b):
-    return a - b
+    return a + b
*** End Patch
EOF"""


def test_it_reads_edits_and_answers(served: WatchedModel, place: Workplace) -> None:
    look = (("exec_command", {"cmd": "cat calc.py"}), ("exec_command", {"cmd": "ls"}))
    turns = [
        Turn("I look.", "What is there?", look),
        Turn(calls=(("exec_command", {"cmd": PATCH}),)),
        Turn("calc.py adds now."),
    ]
    served.model.answers(by_results(turns, aside="A title"))
    assert run_codex(place, Endpoint(served.url), "Make calc.py add.") == "calc.py adds now."
    assert place.file.read_text() == AFTER
    assert served.asked() == [RESPONSES] * 3
    prompt = served.model.prompt()
    assert "def add(a, b):" in prompt and "Success. Updated the following files:" in prompt
    assert "<think>\nWhat is there?\n</think>\n\nI look." in prompt


def test_it_compacts_a_conversation_and_answers_in_a_form(served: WatchedModel, place: Workplace) -> None:
    form = place.home / "form.json"
    form.write_text(json.dumps({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}))

    server, options = Endpoint(served.url), ("-c", "model_auto_compact_token_limit=1000", "--output-schema", str(form))
    served.model.answers(lambda prompt: "They add numbers." if "CONTEXT CHECKPOINT" in prompt else '{"sum": 5}')
    assert run_codex(place, server, "Add 2 and 3.", *options) == '{"sum": 5}'
    grammar = served.model.engine.calls[0].params.grammar
    assert grammar is not None and '"sum": {"type": "integer"}' in grammar.text
    # Its tokens are above the limit, so the conversation is compacted first.
    assert run_codex(place, server, "Again.", *options, "resume", "--last") == '{"sum": 5}'
    assert "They add numbers." in served.model.prompt()
    assert served.asked() == [RESPONSES] * 3
