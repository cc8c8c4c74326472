"""Aider, unchanged, does a task with a model that is served in OpenAI's chat dialect.

It calls no tools: it shows the model the files, takes edits from the answer's text, runs the tests, and shows the model
how they failed.
"""

from support.coding_agents import AFTER, BEFORE, Endpoint, WatchedModel, Workplace, run_aider
from support.seen_requests import Seen

EDIT = Seen("POST", "/v1/chat/completions", 200, "text/event-stream")
COMMIT_MESSAGE = Seen("POST", "/v1/chat/completions", 200, "application/json")
CHECK = "import calc; assert calc.add(2, 3) == 5, 'it does not add'"


def whole_file(text: str) -> str:
    """An answer in Aider's format `whole`."""
    return f"It adds now.\n\ncalc.py\n```\n{text}```\n"


def test_it_reads_edits_and_answers(served: WatchedModel, place: Workplace) -> None:
    def answer(prompt: str) -> str:
        if "commit message" in prompt:
            return "calc.py adds"
        return whole_file(AFTER if "it does not add" in prompt else BEFORE.replace("-", "*"))

    served.model.answers(answer)
    run_aider(place, Endpoint(served.url), "Make calc.py add.", f'python3 -c "{CHECK}"')
    assert place.file.read_text() == AFTER
    assert place.log()[:2] == ["calc.py adds", "calc.py adds"]
    assert served.asked() == [EDIT, COMMIT_MESSAGE, EDIT, COMMIT_MESSAGE]
