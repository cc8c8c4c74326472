"""A conversation as the model was trained to see it: Jinja templates that come with models.

Templates are programs from strangers, and run in a sandbox. What they can use follows Hugging Face's
`apply_chat_template`.
"""

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
import jinja2.nodes

from penstock.core.config import Reason
from penstock.core.errors import ConfigurationError, InvalidParameter, RequestError, TokenizerError
from penstock.core.text_files import decoded
from penstock.text.history import adapted
from penstock.text.template_budget import TakesLong, on_trial
from penstock.text.template_capabilities import TemplateCapabilities, find_capabilities
from penstock.text.template_sandbox import Sandbox, rendered
from penstock.text.template_variables import settable_variables
from penstock.text.tokenizer import Tokenizer, read_json, unused_marker

# In characters, several times any model's. Compiling one of this length takes seconds.
LONGEST_TEMPLATE = 1 << 17

# How deep lists and objects inside of a message or a variable may go.
MAX_DEPTH = 64

# A template that knows only plain text: what a model without one gets.
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)

# By these a template finds the parts of a message or a tool, even in a model that has one of them as a special token.
_MESSAGE_FIELDS = frozenset(
    {"role", "content", "name", "tool_call_id", "tool_calls", "id", "type", "function", "arguments"}
    | {"reasoning_content", "thinking", "text", "description", "parameters", "properties", "required"}
)

# What a template always gets.
_GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})

NO_TOKENIZER_FOR_TEMPLATE = "--chat-template needs a tokenizer, and this model has none; name one with --tokenizer."

# The name of a template for conversations with tools.
_TOOL_USE = "tool_use"

_SYSTEM_ROLES = ("system", "developer")
_ANYTHING = "\N{REFERENCE MARK}"

_CONTINUE_TAG = "<|continue-here|> "

# What templates for conversations with tools are tried with.
_PROBED = [
    {
        "type": "function",
        "function": {"name": "zqtool", "description": "zqtool", "parameters": {"type": "object", "properties": {}}},
    }
]


class ChatTemplate:
    """A compiled template.

    Attributes:
        notes: what a user should know about the choice of the template.
        is_plain: whether it is the plain template of a model that has none.
        variables: the names that it reads from outside beside those, such as `enable_thinking`.
        words: the texts that it compares with or writes, each whole.
        reasons: where it comes from, for those who want to know.
        source: its text; with `tool_use`, the text of both.
        takes_tools: whether it reads the tools that a request offers.
        reads_messages: whether it reads the conversation.
    """

    def __init__(
        self,
        source: str,
        *,
        tool_use: str | None = None,
        is_plain: bool = False,
        notes: Sequence[str] = (),
        reasons: Sequence[Reason] = (),
    ) -> None:
        """`tool_use` is the template for conversations with tools, where that is another.

        Raises TokenizerError where one is not a valid template.
        """
        if len(source) > LONGEST_TEMPLATE:
            raise TokenizerError(
                f"The chat template has {len(source)} characters; at most {LONGEST_TEMPLATE} are accepted."
            )
        sandbox = Sandbox()
        try:
            self._template = sandbox.from_string(source)
            tree = sandbox.parse(source)
            read = jinja2.meta.find_undeclared_variables(tree)
        except Exception as error:
            # Jinja makes Python of it, which can object to it in many ways (SyntaxError, ValueError, RecursionError).
            raise TokenizerError(f"The chat template cannot be compiled: {error}.") from error
        self._tool_use = None if tool_use is None else ChatTemplate(tool_use)
        self.source = source if tool_use is None else f"{source}\n{tool_use}"
        self.takes_tools: bool = "tools" in read if self._tool_use is None else self._tool_use.takes_tools
        self.reads_messages: bool = "messages" in read
        of_tools = frozenset() if self._tool_use is None else self._tool_use.variables
        self.variables: frozenset[str] = (settable_variables(tree) - _GIVEN - sandbox.globals.keys()) | of_tools
        texts = (constant.value for constant in tree.find_all(jinja2.nodes.Const))
        self.words = frozenset(text for text in texts if isinstance(text, str))
        self.is_plain = is_plain
        self.notes = tuple(notes)
        self.reasons = tuple(reasons)

    def chosen(self, tools: object) -> "ChatTemplate":
        """The template for a conversation with these tools, or without any."""
        return self if not tools or self._tool_use is None else self._tool_use

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        special_tokens: Mapping[str, str],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation's text; raises RequestError with the template's own message where it refuses.

        Within `in_a_moment` it raises TakesLong where it takes longer.
        `variables` are further values for the template, such as `enable_thinking`.
        """
        template = self.chosen(tools)._template
        conversation = [dict(message) for message in messages]
        if continue_final_message:
            self._tag_final_message(conversation)
        values = {**special_tokens, "documents": None, **(variables or {})}
        values |= {"messages": conversation, "tools": list(tools) if tools else None}
        values["add_generation_prompt"] = add_generation_prompt
        text = self._render(template, values)
        return self._cut_at_tag(text) if continue_final_message else text

    def _render(self, template: jinja2.Template, values: dict[str, Any]) -> str:
        try:
            return rendered(template, values)
        except (RequestError, TakesLong):
            raise
        except Exception as error:
            # A template is a program: it can fail in any way, and only ever because of these messages or itself.
            detail = str(error) if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: {error}"
            raise RequestError(
                f"messages: the chat template does not accept this conversation: {detail}", param="messages"
            ) from error

    def _tag_final_message(self, conversation: list[dict[str, Any]]) -> None:
        content = conversation[-1].get("content") if conversation else None
        if isinstance(content, list) and content and isinstance(content[-1].get("text"), str):
            last = {**content[-1], "text": content[-1]["text"] + _CONTINUE_TAG}
            conversation[-1]["content"] = [*content[:-1], last]
        elif isinstance(content, str):
            conversation[-1]["content"] = content + _CONTINUE_TAG
        else:
            raise InvalidParameter("continue_final_message", "the last message has no text to continue.")

    def _cut_at_tag(self, text: str) -> str:
        tag = _CONTINUE_TAG.rstrip()
        where = text.rfind(tag)
        if where < 0:
            raise InvalidParameter(
                "continue_final_message", "the chat template leaves out the last message, or changes it."
            )
        # Where the template trims messages, the end of the one to be continued is trimmed too.
        kept = text[where : where + len(_CONTINUE_TAG)] == _CONTINUE_TAG
        return text[:where] if kept else text[:where].rstrip()


class ChatEncoder:
    """Conversations → token ids.

    Conversations come in the shapes of OpenAI's chats; the template gets them in those that it keeps (`history.py`).
    Text in messages is text: where a special token's text occurs in one, it is encoded as ordinary characters, so that
    no message can forge a turn of the conversation. Only the template itself writes special tokens.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self._capabilities = self._find(template, None)
        with_tools = template.chosen(_PROBED)
        self._with_tools = self._capabilities if with_tools is template else self._find(with_tools, _PROBED)

    @property
    def reasons(self) -> list[Reason]:
        """What is done to conversations for the template, and why."""
        found = [*self.template.reasons, *self._capabilities.reasons()]
        if self._with_tools != self._capabilities:
            beside = [reason for reason in self._with_tools.reasons() if reason not in found]
            found += [Reason(f"{reason.setting} with tools", reason.value, reason.why) for reason in beside]
        return found

    def _find(self, template: ChatTemplate, tools: Sequence[Mapping[str, Any]] | None) -> TemplateCapabilities:
        def render(messages: Sequence[Mapping[str, Any]]) -> str:
            return template.render(messages, special_tokens=self.tokenizer.special_tokens, tools=tools)

        with on_trial():
            return find_capabilities(render)

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        add_special_tokens: bool = False,
        variables: Mapping[str, Any] | None = None,
        most_tokens: int | None = None,
    ) -> list[int]:
        """Token ids of a conversation; raises RequestError where the template refuses it.

        `tools` are functions that the model may call, in OpenAI's form. With `most_tokens`, a text that cannot but have
        more raises ContextLengthExceeded before it is tokenized.
        """
        # Before and after, since arguments of calls, which come as text, may become objects.
        _check_depth(messages, "messages")
        messages = adapted(messages, self._with_tools if tools else self._capabilities)
        texts = list(_strings(messages, "messages"))
        texts += _strings(tools or (), "tools")
        texts += _strings(list((variables or {}).values()), "chat_template_kwargs")
        marker = None
        if any(map(self.tokenizer.has_special, texts)):
            marker = unused_marker(texts)
            if marker is None:
                raise InvalidParameter("messages", "the text uses all of the noncharacters U+FDD0 to U+FDEF.")

            def mark(text: str) -> str:
                return self.tokenizer.mark_special(text, marker)

            messages = _map_strings(messages, mark)
            tools = _map_strings(tools, mark)
            # A template finds its variables by their names, which it does not write.
            variables = {name: _map_strings(value, mark) for name, value in (variables or {}).items()}
        text = self.template.render(
            messages,
            tools=tools,
            special_tokens=self.tokenizer.special_tokens,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
        )
        if most_tokens is not None:
            self.tokenizer.check_length(text, most_tokens, "messages")
        # A template writes the special tokens it wants; the plain one leaves them to the tokenizer.
        whole = add_special_tokens or self.template.is_plain
        if marker is None:
            return self.tokenizer.encode(text, add_special_tokens=whole)
        ids = self.tokenizer.encode_marked(text, marker)
        return self.tokenizer.add_special_ids(ids) if whole else ids

    def opening_tokens(
        self,
        prompt: Sequence[int],
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_special_tokens: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> int:
        """How many tokens a conversation's prompt begins with before the first message that is no system message.

        The template's own words and the tools are in them, as far as the template writes them there. It is what the
        prompt has in common with that of the same system messages before any other message: where this begins with the
        same character, that is in it too. Raises RequestError where the template refuses such a conversation.
        """
        leading = takewhile(lambda message: message.get("role") in _SYSTEM_ROLES, messages)
        others = self.encode(
            [*leading, {"role": "user", "content": _ANYTHING}],
            tools=tools,
            add_generation_prompt=False,
            add_special_tokens=add_special_tokens,
            variables=variables,
        )
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, others, strict=False)))


def load_chat_template(tokenizer: Tokenizer, file: str | None = None) -> ChatTemplate:
    """The template in `file`, or that of the model; a plain one, with a note, where there is none.

    Args:
        tokenizer: the model's.
        file: a path, or the name of a file in the model's directory, with a Jinja template.

    Of a model, the first of these places is taken: `chat_template.jinja` (with more, by name, in
    `additional_chat_templates/`), `chat_template` in `tokenizer_config.json` (a string, or a list of named ones),
    `chat_template.json`. One of the name "tool_use" is for conversations with tools. Raises ConfigurationError where
    `file` is no template, TokenizerError where those of the model cannot be used.
    """
    if file is not None:
        return _template_in(file, tokenizer.directory)
    found = _found_templates(tokenizer)
    if "default" in found.templates:
        reason = Reason("chat template", found.origin, found.why, at_start=True)
        return ChatTemplate(found.templates["default"], tool_use=found.templates.get(_TOOL_USE), reasons=[reason])
    if found.templates:
        names = ", ".join(sorted(found.templates))
        raise TokenizerError(
            f"The model has the chat templates {names}, but none of the name 'default'; add one, or name a file with "
            "--chat-template."
        )
    note = "The model has no chat template; chats are written plainly, one line 'role: content' for each message."
    why = "the model has none; --chat-template names a file with one"
    reason = Reason("chat template", "plain", why, at_start=True)
    return ChatTemplate(PLAIN_TEMPLATE, is_plain=True, notes=[note], reasons=[reason])


def named_templates(tokenizer: Tokenizer) -> dict[str, str]:
    """All templates of a model by name; see `load_chat_template`."""
    return _found_templates(tokenizer).templates


def _template_in(file: str, directory: Path) -> ChatTemplate:
    path = next((path for path in (Path(file).expanduser(), directory / file) if path.is_file()), None)
    if path is None:
        there = ", ".join(sorted(each.name for each in directory.glob("*.jinja"))) or "none"
        raise ConfigurationError(
            f"--chat-template {file}: there is no such file, neither here nor in {directory}, whose templates are: "
            f"{there}."
        )
    try:
        reason = Reason("chat template", str(path), "as asked", at_start=True)
        template = ChatTemplate(_read_template(path), reasons=[reason])
    except TokenizerError as error:
        raise ConfigurationError(f"--chat-template {file}: {error.message}") from None
    if not template.reads_messages:
        raise ConfigurationError(
            f"--chat-template {file}: it never reads messages, so every conversation would be left out; name a file "
            "with a Jinja template."
        )
    return template


@dataclass(frozen=True)
class _Found:
    """The templates of a model by name, where the one that is used comes from, and why."""

    templates: dict[str, str]
    origin: str = ""
    why: str = ""


def _found_templates(tokenizer: Tokenizer) -> _Found:
    # A GGUF file has a tokenizer's configuration in itself.
    configured = "tokenizer_config.json" if tokenizer.directory.is_dir() else tokenizer.directory.name
    templates: dict[str, str] = {}
    origin = ""
    unused = []
    for place, look in (
        ("chat_template.jinja", _template_files),
        (configured, _config_templates),
        ("chat_template.json", _json_templates),
    ):
        there = look(tokenizer)
        if origin:
            if there.get("default", templates["default"]) != templates["default"]:
                unused.append(f"another in {place}")
            continue
        templates |= there
        if "default" in there:
            origin = place
    whys = ["the model's own"]
    if _TOOL_USE in templates:
        whys.append(f"{_TOOL_USE} where there are tools")
    unused += sorted(templates.keys() - {"default", _TOOL_USE})
    if unused:
        whys.append(f"not used: {', '.join(unused)}")
    return _Found(templates, origin, "; ".join(whys))


def _named_templates(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, dict):
        return {name: text for name, text in value.items() if isinstance(text, str)}
    if isinstance(value, list):
        pairs = [(entry.get("name"), entry.get("template")) for entry in value if isinstance(entry, dict)]
        return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}
    if value is not None:
        raise TokenizerError(
            f"The model has chat_template = {reprlib.repr(value)}, but it must be a text, or a list of named ones."
        )
    return {}


def _template_files(tokenizer: Tokenizer) -> dict[str, str]:
    main = tokenizer.directory / "chat_template.jinja"
    found = {path.stem: path for path in sorted(tokenizer.directory.glob("additional_chat_templates/*.jinja"))}
    if main.is_file():
        found["default"] = main
    return {name: _read_template(path) for name, path in found.items() if path.is_file()}


def _config_templates(tokenizer: Tokenizer) -> dict[str, str]:
    return _named_templates(tokenizer.config.get("chat_template"))


def _json_templates(tokenizer: Tokenizer) -> dict[str, str]:
    return _named_templates(read_json(tokenizer.directory / "chat_template.json").get("chat_template"))


def _read_template(path: Path) -> str:
    try:
        return decoded(path.read_bytes())
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path} cannot be read as UTF-8 text: {error}.") from error


def _strings(value: Any, param: str, depth: int = 0) -> Iterator[str]:
    """Every string in nested lists and mappings, keys included; raises InvalidParameter below MAX_DEPTH levels."""
    if depth > MAX_DEPTH:
        raise InvalidParameter(param, f"lists and objects are nested more than {MAX_DEPTH} deep.")
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _strings(key, param, depth + 1)
            yield from _strings(inner, param, depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner, param, depth + 1)


def _check_depth(value: Any, param: str) -> None:
    """Raise InvalidParameter where lists and mappings are nested too deep."""
    for _ in _strings(value, param):
        pass


def _map_strings(value: Any, function: Callable[[str], str]) -> Any:
    """The same nested value, with `function` applied to every string in it, except for a message's field names."""
    if isinstance(value, str):
        return function(value)
    if isinstance(value, Mapping):
        return {
            key if key in _MESSAGE_FIELDS else _map_strings(key, function): _map_strings(inner, function)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_map_strings(inner, function) for inner in value]
    return value
