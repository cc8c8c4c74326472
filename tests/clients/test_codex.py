"""Codex, unchanged, does a task with a model that is served in OpenAI's newer dialect."""

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
