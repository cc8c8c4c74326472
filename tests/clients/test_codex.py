"""Codex, unchanged, does a task with a model that is served in OpenAI's newer dialect."""

from support.coding_agents import AFTER, WatchedModel, Workplace
from support.seen_requests import Seen
from support.speaking_model import Turn, by_results

RESPONSES = Seen("POST", "/v1/responses", 200, "text/event-stream")
SETTINGS = """
model = "scripted"
model_provider = "penstock"
check_for_update_on_startup = false

[model_providers.penstock]
name = "Penstock"
base_url = "{url}/v1"
env_key = "PENSTOCK_API_KEY"
wire_api = "responses"

[analytics]
enabled = false
"""
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
    place.write(".codex/config.toml", SETTINGS.format(url=served.url))
    look = (("exec_command", {"cmd": "cat calc.py"}), ("exec_command", {"cmd": "ls"}))
    turns = [
        Turn("I look.", "What is there?", look),
        Turn(calls=(("exec_command", {"cmd": PATCH}),)),
        Turn("calc.py adds now."),
    ]
    served.model.answers(by_results(turns, aside="A title"))
    output = place.run(
        "codex",
        *("exec", "--dangerously-bypass-approvals-and-sandbox", "--color", "never", "Make calc.py add."),
        settings={"PENSTOCK_API_KEY": "none"},
    )
    assert place.file.read_text() == AFTER
    assert output.splitlines()[-1] == "calc.py adds now."
    assert served.asked() == [RESPONSES] * 3
    prompt = served.model.prompt()
    assert "def add(a, b):" in prompt and "Success. Updated the following files:" in prompt
    assert "<think>\nWhat is there?\n</think>\n\nI look." in prompt
