"""OpenCode, unchanged, does a task with a model that is served in OpenAI's chat dialect."""

from support.coding_agents import AFTER, Endpoint, WatchedModel, Workplace, run_opencode
from support.seen_requests import Seen
from support.speaking_model import Turn, by_results

CHAT = Seen("POST", "/v1/chat/completions", 200, "text/event-stream")


def test_it_reads_edits_and_answers(served: WatchedModel, place: Workplace) -> None:
    path = str(place.file)
    turns = [
        Turn("I look.", "What is there?", (("read", {"filePath": path}), ("bash", {"command": "ls"}))),
        Turn(calls=(("edit", {"filePath": path, "oldString": "a - b", "newString": "a + b"}),)),
        Turn("calc.py adds now."),
    ]
    served.model.answers(by_results(turns, aside="A title"))
    assert "calc.py adds now." in run_opencode(place, Endpoint(served.url), "Make calc.py add.")
    assert place.file.read_text() == AFTER
    # One of them asks for a title.
    assert served.asked() == [CHAT] * 4
    prompt = served.model.prompt()
    assert "def add(a, b):" in prompt and "Edit applied successfully." in prompt
