"""A server whose model reasons and calls tools, in words that the test gives it."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp

from penstock.server.app import create_app
from penstock.text.chat_template import ChatTemplate
from penstock.text.tokenizer import Tokenizer
from support.http_server import running
from support.scripted_engine import ScriptedEngine

TEMPLATE = (
    "{% if tools %}<|im_start|>tools: {% for t in tools %}{{ t | tojson }}{% endfor %}<|im_end|>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}: "
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
# As strict as Qwen's: a system message stands first or is refused, and arguments are objects.
QWEN_LIKE = (Path(__file__).parent / "qwen_like.jinja").read_text(encoding="utf-8")
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Köln"}}</tool_call>'
SAID = f"<think>Which city?</think>I look.{CALL}"


@dataclass(frozen=True)
class Turn:
    """One answer of a model: what it thinks, what it says, and its calls, each a tool's name and arguments."""

    text: str = ""
    thought: str = ""
    calls: tuple[tuple[str, dict[str, object]], ...] = ()

    def words(self) -> str:
        """The answer as a model writes it whose template is `QWEN_LIKE`."""
        thought = f"<think>\n{self.thought}\n</think>\n\n" if self.thought else ""
        calls = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in self.calls]
        return thought + self.text + "".join(f"\n<tool_call>\n{call}\n</tool_call>" for call in calls)


def by_results(turns: Sequence[Turn], aside: str) -> Callable[[str], str]:
    """What a model says to a prompt in the form of `QWEN_LIKE`: the turn that follows on the results of tools in it.

    A prompt without tools is answered with `aside`. One on whose results no turn follows fails the request.
    """
    followed = {sum(len(earlier.calls) for earlier in turns[:number]): turn for number, turn in enumerate(turns)}

    def answer(prompt: str) -> str:
        if "\n<tools>\n" not in prompt:
            return aside
        return followed[prompt.count("\n<tool_response>\n")].words()

    return answer


@dataclass(frozen=True)
class SpeakingModel:
    """Where it is served, and its parts."""

    url: str
    engine: ScriptedEngine
    tokenizer: Tokenizer

    def says(self, text: str) -> None:
        """What every answer is from now on."""
        self.engine.reply = self.tokenizer.encode(text, False)

    def answers(self, answer: Callable[[str], str]) -> None:
        """From now on, what an answer is follows from the prompt's text."""

        def tokens(prompt: list[int]) -> list[int]:
            return self.tokenizer.encode(answer(self.tokenizer.decode(prompt, skip_special=False)), False)

        self.engine.answer = tokens

    def prompt(self) -> str:
        """The last one."""
        return self.tokenizer.decode(self.engine.calls[-1].prompt, skip_special=False)


@contextlib.contextmanager
def serving_speaking_model(
    tokenizer: Tokenizer,
    template: str = TEMPLATE,
    max_model_len: int = 4096,
    around: Callable[[ASGIApp], ASGIApp] = lambda app: app,
) -> Iterator[SpeakingModel]:
    """Serve one until the block ends; `around` may put something between the application and its clients."""
    engine = ScriptedEngine(tokenizer.table, [5], max_model_len=max_model_len)
    with running(around(create_app(engine, tokenizer, template=ChatTemplate(template)))) as url:
        yield SpeakingModel(url, engine, tokenizer)
