"""A conversation as the model was trained to see it: Jinja templates that come with models.

Templates are programs from strangers. They run in Jinja's immutable sandbox, with a bound on their steps, their time
and their output. What they can use follows Hugging Face's `apply_chat_template`.
"""

import contextvars
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.visitor

from penstock.core.errors import InvalidParameter, RequestError, TokenizerError
from penstock.text.tokenizer import Tokenizer, read_json, unused_marker

MAX_STEPS = 2_000_000
MAX_SECONDS = 10.0
MAX_OUTPUT = 32 * 1024 * 1024
MAX_INTEGER_BITS = 4096

# A template that knows only plain text: what a model without one gets.
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)

_CONTINUE_TAG = "<|continue-here|> "


class _Budget:
    """Steps, time and memory that one rendering may still use."""

    def __init__(self) -> None:
        self.steps = 0
        self.deadline = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise jinja2.TemplateRuntimeError(f"it takes more than {MAX_STEPS} steps")
        if self.steps % 256 == 0 and time.monotonic() > self.deadline:
            raise jinja2.TemplateRuntimeError(f"it takes longer than {MAX_SECONDS:g} seconds")


_budget: contextvars.ContextVar[_Budget] = contextvars.ContextVar("chat_template_budget")


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    budget = _budget.get()
    for value in values:
        budget.step()
        yield value


class _Bound(jinja2.visitor.NodeTransformer):
    """Makes every loop count its steps, and every concatenation check its length."""

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.Node:  # noqa: N802 (the name is Jinja's)
        if node.recursive:
            raise jinja2.TemplateSyntaxError("recursive loops are not supported", node.lineno)
        self.generic_visit(node)
        node.iter = jinja2.nodes.Filter(node.iter, "__counted", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:  # noqa: N802 (the name is Jinja's)
        self.generic_visit(node)
        return jinja2.nodes.Filter(node, "__bounded", [], [], None, None, lineno=node.lineno)


class _GenerationBlocks(jinja2.ext.Extension):
    """`{% generation %}` marks what the model wrote, for training; here its body is simply rendered."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which counts steps and refuses operations that make much out of little."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, jinja2.ext.loopcontrols])
        self.filters["__counted"] = _counted
        self.filters["__bounded"] = _bounded
        self.filters["tojson"] = _to_json
        self.filters.pop("center", None)
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        # Jinja's own makes random text of any length.
        self.globals.pop("lipsum", None)

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree: jinja2.nodes.Template = _Bound().visit(super()._parse(source, name, filename))
        return tree

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: B902, N805 (as in Jinja)
        _budget.get().step()
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_INTEGER_BITS:
                raise jinja2.exceptions.SecurityError("it makes a number that is too large")
        elif operator == "*":
            sizes = [len(value) for value in (left, right) if hasattr(value, "__len__")]
            times = [value for value in (left, right) if isinstance(value, int)]
            _check_size(max(sizes, default=0) * max(times, default=0))
        elif operator == "%" and isinstance(left, str) and any(mark.isdigit() or mark == "*" for mark in left):
            raise jinja2.exceptions.SecurityError("widths in a text format are not available")
        result = super().call_binop(context, operator, left, right)
        return _bounded(result) if operator == "+" else result


def _check_size(size: int) -> None:
    if size > MAX_OUTPUT:
        raise jinja2.exceptions.SecurityError(f"it makes a value longer than {MAX_OUTPUT}")


def _bounded(value: Any) -> Any:
    if isinstance(value, str | list | tuple):
        _check_size(len(value))
    return value


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes characters that HTML gives a meaning, which models are not trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


class ChatTemplate:
    """A compiled template.

    Attributes:
        notes: what a user should know about the choice of the template.
        is_plain: whether it is the plain template of a model that has none.
    """

    def __init__(self, source: str, *, is_plain: bool = False, notes: Sequence[str] = ()) -> None:
        """Raises TokenizerError where `source` is not a valid template."""
        try:
            self._template = _Environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TokenizerError(f"The model's chat template cannot be compiled: {error}.") from error
        self._source = source
        self.is_plain = is_plain
        self.notes = tuple(notes)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        special_tokens: Mapping[str, str],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation's text; raises RequestError with the template's own message where it refuses.

        `variables` are further values for the template, such as `enable_thinking`.
        """
        conversation = [dict(message) for message in messages]
        if continue_final_message:
            self._tag_final_message(conversation)
        values = {**special_tokens, "tools": None, "documents": None, **(variables or {})}
        values |= {"messages": conversation, "add_generation_prompt": add_generation_prompt}
        text = self._render(values)
        return self._cut_at_tag(text) if continue_final_message else text

    def _render(self, values: dict[str, Any]) -> str:
        token = _budget.set(_Budget())
        try:
            parts, size = [], 0
            for part in self._template.generate(values):
                size += len(part)
                if size > MAX_OUTPUT:
                    raise jinja2.TemplateRuntimeError(f"its output is longer than {MAX_OUTPUT} characters")
                parts.append(part)
            return "".join(parts)
        except RequestError:
            raise
        except Exception as error:
            # A template is a program: it can fail in any way, and only ever because of these messages or itself.
            detail = str(error) if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: {error}"
            raise RequestError(
                f"messages: the model's chat template does not accept this conversation: {detail}", param="messages"
            ) from error
        finally:
            _budget.reset(token)

    def _tag_final_message(self, conversation: list[dict[str, Any]]) -> None:
        content = conversation[-1].get("content") if conversation else None
        if not isinstance(content, str):
            raise InvalidParameter("continue_final_message", "the last message has no text to continue.")
        conversation[-1]["content"] = content + _CONTINUE_TAG

    def _cut_at_tag(self, text: str) -> str:
        tag = _CONTINUE_TAG.rstrip()
        where = text.rfind(tag)
        if where < 0:
            raise InvalidParameter(
                "continue_final_message", "the model's chat template leaves out the last message, or changes it."
            )
        # Where the template trims messages, the end of the one to be continued is trimmed too.
        kept = text[where : where + len(_CONTINUE_TAG)] == _CONTINUE_TAG
        return text[:where] if kept else text[:where].rstrip()


class ChatEncoder:
    """Conversations → token ids.

    Text in messages is text: where a special token's text occurs in one, it is encoded as ordinary characters, so that
    nobody can forge a turn of the conversation. Only the template itself writes special tokens.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.tokenizer = tokenizer
        self.template = template

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        add_special_tokens: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation; raises RequestError where the template refuses it."""
        texts = list(_strings([messages, variables or {}]))
        marker = None
        if any(map(self.tokenizer.has_special, texts)):
            marker = unused_marker(texts)
            if marker is None:
                raise InvalidParameter("messages", "the text uses all of the noncharacters U+FDD0 to U+FDEF.")
            messages = _map_strings(messages, lambda text: self.tokenizer.mark_special(text, marker))
            variables = _map_strings(variables, lambda text: self.tokenizer.mark_special(text, marker))
        text = self.template.render(
            messages,
            special_tokens=self.tokenizer.special_tokens,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
        )
        # A template writes the special tokens it wants; the plain one leaves them to the tokenizer.
        whole = add_special_tokens or self.template.is_plain
        if marker is None:
            return self.tokenizer.encode(text, add_special_tokens=whole)
        ids = self.tokenizer.encode_marked(text, marker)
        return self.tokenizer.add_special_ids(ids) if whole else ids


def load_chat_template(tokenizer: Tokenizer) -> ChatTemplate:
    """The template of a model, from any of its usual places; a plain one, with a note, where there is none.

    Places, the first that has one: `chat_template.jinja` (with more, by name, in `additional_chat_templates/`),
    `chat_template` in `tokenizer_config.json` (a string, or a list of named ones), `chat_template.json`.
    """
    folder = tokenizer.directory
    candidates: dict[str, str] = {}
    files = [folder / "chat_template.jinja", *sorted(folder.glob("additional_chat_templates/*.jinja"))]
    for path in files:
        if path.is_file():
            name = "default" if path.name == "chat_template.jinja" and path.parent == folder else path.stem
            candidates[name] = path.read_text(encoding="utf-8")
    if not candidates:
        candidates = _named_templates(tokenizer.config.get("chat_template"))
    if not candidates:
        candidates = _named_templates(read_json(folder / "chat_template.json").get("chat_template"))
    if "default" in candidates:
        return ChatTemplate(candidates["default"])
    if candidates:
        names = ", ".join(sorted(candidates))
        raise TokenizerError(f"The model has the chat templates {names}, but none of the name 'default'; add one.")
    note = "The model has no chat template; chats are written plainly, one line 'role: content' for each message."
    return ChatTemplate(PLAIN_TEMPLATE, is_plain=True, notes=[note])


def _named_templates(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, dict):
        return {name: text for name, text in value.items() if isinstance(text, str)}
    if isinstance(value, list):
        pairs = [(entry.get("name"), entry.get("template")) for entry in value if isinstance(entry, dict)]
        return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}
    return {}


def _strings(value: Any) -> Iterator[str]:
    """Every string value in nested lists and mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)


def _map_strings(value: Any, function: Any) -> Any:
    """The same nested value, with `function` applied to every string in it."""
    if isinstance(value, str):
        return function(value)
    if isinstance(value, Mapping):
        return {key: _map_strings(inner, function) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(inner, function) for inner in value]
    return value
