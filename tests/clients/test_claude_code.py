"""Claude Code, unchanged, does a task with a model that is served in Anthropic's dialect."""

from support.coding_agents import AFTER, Endpoint, WatchedModel, Workplace, run_claude_code
from support.seen_requests import Seen
from support.speaking_model import Turn, by_results

MESSAGES = Seen("POST", "/v1/messages?beta=true", 200, "text/event-stream")
# It looks whether the host is there; every status will do.
HELLO = Seen("HEAD", "/api/hello", 404, "application/json")


def test_it_reads_edits_and_answers(served: WatchedModel, place: Workplace) -> None:
    path = str(place.file)
    turns = [
        Turn("I look.", "What is there?", (("Read", {"file_path": path}), ("Bash", {"command": "ls"}))),
        Turn(calls=(("Edit", {"file_path": path, "old_string": "a - b", "new_string": "a + b"}),)),
        Turn("calc.py adds now."),
    ]
    served.model.answers(by_results(turns, aside="A title"))
    assert run_claude_code(place, Endpoint(served.url), "Make calc.py add.") == "calc.py adds now."
    assert place.file.read_text() == AFTER
    assert [seen for seen in served.asked() if seen != HELLO] == [MESSAGES] * 3
    prompt = served.model.prompt()
    assert "def add(a, b):" in prompt and "has been updated successfully" in prompt
    assert "<think>\nWhat is there?\n</think>\n\nI look." in prompt
