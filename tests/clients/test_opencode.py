"""OpenCode, unchanged, does a task with a model that is served in OpenAI's chat dialect."""

import json

from support.coding_agents import AFTER, WatchedModel, Workplace
from support.seen_requests import Seen
from support.speaking_model import Turn, by_results

CHAT = Seen("POST", "/v1/chat/completions", 200, "text/event-stream")


def test_it_reads_edits_and_answers(served: WatchedModel, place: Workplace) -> None:
    place.write(
        ".config/opencode/opencode.json",
        json.dumps(
            {
                "autoupdate": False,
                "share": "disabled",
                "enabled_providers": ["penstock"],
                "model": "penstock/scripted",
                "provider": {
                    "penstock": {
                        "npm": "@ai-sdk/openai-compatible",
                        "options": {"baseURL": f"{served.url}/v1", "apiKey": "none"},
                        "models": {"scripted": {"limit": {"context": 200000, "output": 4096}}},
                    }
                },
            }
        ),
    )
    path = str(place.file)
    served.model.answers(
        by_results(
            [
                Turn("I look.", "What is there?", (("read", {"filePath": path}), ("bash", {"command": "ls"}))),
                Turn(calls=(("edit", {"filePath": path, "oldString": "a - b", "newString": "a + b"}),)),
                Turn("calc.py adds now."),
            ],
            aside="A title",
        )
    )
    output = place.run("opencode", "run", "--auto", "Make calc.py add.", settings=SETTINGS)
    assert place.file.read_text() == AFTER
    assert "calc.py adds now." in output
    assert served.asked() == [CHAT] * 4
    assert "def add(a, b):" in served.model.prompt() and "Edit applied successfully." in served.model.prompt()


SETTINGS = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
}
