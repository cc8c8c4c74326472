"""A server whose model reasons and calls tools, in words that the test gives it."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

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
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Köln"}}</tool_call>'
SAID = f"<think>Which city?</think>I look.{CALL}"


@dataclass(frozen=True)
class SpeakingModel:
    """Where it is served, and its parts."""

    url: str
    engine: ScriptedEngine
    tokenizer: Tokenizer

    def says(self, text: str) -> None:
        """What every answer is from now on."""
        self.engine.reply = self.tokenizer.encode(text, False)

    def prompt(self) -> str:
        """The last one."""
        return self.tokenizer.decode(self.engine.calls[-1].prompt, skip_special=False)


@contextlib.contextmanager
def serving_speaking_model(tokenizer: Tokenizer) -> Iterator[SpeakingModel]:
    """Serve one until the block ends."""
    engine = ScriptedEngine(tokenizer.table, [5], max_model_len=4096)
    with running(create_app(engine, tokenizer, template=ChatTemplate(TEMPLATE))) as url:
        yield SpeakingModel(url, engine, tokenizer)
