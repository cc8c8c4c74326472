"""Claude Code, unchanged, does a task with a model that is served in Anthropic's dialect."""

from support.coding_agents import AFTER, Endpoint, WatchedModel, Workplace, run_claude_code
from support.seen_requests import Seen
from support.speaking_model import Turn, by_results

MESSAGES = Seen("POST", "/v1/messages?beta=true", 200, "text/event-stream")
COUNT = Seen("POST", "/v1/messages/count_tokens?beta=true", 200, "application/json")


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
    assert served.asked() == [MESSAGES] * 3
    prompt = served.model.prompt()
    assert "def add(a, b):" in prompt and "has been updated successfully" in prompt
    assert "<think>\nWhat is there?\n</think>\n\nI look." in prompt


def test_it_does_without_checks_of_calls_that_the_server_does_not_make(served: WatchedModel, place: Workplace) -> None:
    turns = [Turn("I look.", calls=(("Read", {"file_path": str(place.file)}),)), Turn("calc.py subtracts.")]
    served.model.answers(by_results(turns, aside="A title"))
    said = run_claude_code(place, Endpoint(served.url), "What does calc.py do?", "--permission-mode", "auto")
    assert said == "calc.py subtracts."
    refused = Seen("POST", MESSAGES.path, 400, "application/json")
    assert served.asked() == [refused, MESSAGES, MESSAGES]


def test_it_compacts_a_conversation_and_counts_tokens(served: WatchedModel, place: Workplace) -> None:
    server = Endpoint(served.url)

    def answer(prompt: str) -> str:
        if "Say hello." not in prompt:
            return "We go on."
        return "<summary>We have met.</summary>" if "summary" in prompt.rpartition("Say hello.")[2] else "Hello."

    served.model.answers(answer)
    assert run_claude_code(place, server, "Say hello.") == "Hello."
    run_claude_code(place, server, "/compact", "--continue")
    assert "summary of the conversation" in served.model.prompt()
    assert run_claude_code(place, server, "Go on.", "--continue") == "We go on."
    assert "We have met." in served.model.prompt() and "Hello." not in served.model.prompt()
    assert set(served.asked()) == {MESSAGES}
    served.asked().clear()
    assert "Context Usage" in run_claude_code(place, server, "/context", "--continue")
    assert set(served.asked()) == {COUNT}
