"""What a chat template does with the shapes that conversations come in, found out by trying.

Templates differ in the roles they know, in whether a content may be a list of parts, and in how they write a call of a
tool. None of them says so. So each is tried on short conversations of words that occur nowhere else: what the text
does not have was lost.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from penstock.core.config import Reason
from penstock.core.errors import RequestError

NoContent = Literal["missing", "null", "empty"]
"""How a message that has no content says so: the key is not there, it is null, or it is an empty text."""

Message = dict[str, Any]
Render = Callable[[Sequence[Mapping[str, Any]]], str]

_WHY = "tried on the chat template"
_FORMS: dict[NoContent, dict[str, Any]] = {"missing": {}, "null": {"content": None}, "empty": {"content": ""}}

_OBJECT = {"zqkey": "zqvalue"}
_TEXT = '{"zqkey": "zqvalue"}'
_CUT = '{"zqkey": "zqval'
_LONG_ID = "call_zq3456789012345678901234"
_SHORT_ID = "zq3456789"


class TemplateCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a template keeps of a conversation. The defaults are those of a template that keeps everything.

    Attributes:
        developer: "known": it knows the role of this name, and does not only write any role's; "alone": so it does
            where no other role instructs the model; "unknown": it does not.
        system: "anywhere": system messages may be everywhere; "leading": several at the beginning; "one": one, at the
            beginning; "none": the role is refused or left out.
        parts: the roles whose content may be a list of several parts; `only_parts`: those whose content must be a list.
        calls: "beside text"; "alone": text beside a call is left out; "apart": a call beside text is left out, but not
            one in a message of its own; "none": calls are left out.
        parallel_calls: whether a message may have several calls.
        arguments: of calls, as an object or as the text of one.
        cut_arguments: whether arguments that are no object may be given as text.
        no_content: how a message of calls says that it has no content; `empty_content`: where its text is empty.
        tool_role: whether results of tools are kept.
        user_after_result: whether the user may speak before the result of a tool is answered.
        short_ids: whether ids of calls must have nine letters and digits.
        tried: whether this was found out; a template that refuses a single message of the user cannot be tried.
    """

    developer: Literal["known", "alone", "unknown"] = "known"
    system: Literal["anywhere", "leading", "one", "none"] = "anywhere"
    parts: frozenset[str] = frozenset()
    only_parts: frozenset[str] = frozenset()
    calls: Literal["beside text", "alone", "apart", "none"] = "beside text"
    parallel_calls: bool = True
    arguments: Literal["object", "text"] = "object"
    cut_arguments: bool = True
    no_content: NoContent = "missing"
    empty_content: NoContent = "empty"
    tool_role: bool = True
    user_after_result: bool = True
    short_ids: bool = False
    tried: bool = True

    def reasons(self) -> list[Reason]:
        """What users should know of it: what every conversation meets, and what is unusual."""
        if not self.tried:
            why = "the chat template refuses those that it was tried on"
            return [Reason("conversations", "as they come", why, at_start=True)]
        arguments = "no calls" if self.calls == "none" else f"as {_ARGUMENTS[self.arguments]}"
        found = [
            Reason("developer messages", *_DEVELOPER[self.developer], at_start=True),
            Reason("system messages", _SYSTEM[self.system], _WHY, at_start=True),
            Reason("call arguments", arguments, _WHY, at_start=True),
        ]
        if self.parts or self.only_parts:
            roles = ", ".join(sorted(self.parts | self.only_parts))
            found.append(Reason("content parts", f"as lists for {roles}", f"{_WHY}; elsewhere they become lines"))
        if self.calls != "beside text":
            found.append(Reason("tool calls", *_CALLS[self.calls], at_start=True))
        if not self.parallel_calls:
            found.append(Reason("parallel calls", "one message each", f"{_WHY}, which takes one call in a message"))
        if not self.tool_role:
            why = f"{_WHY}, which leaves out or refuses the role"
            found.append(Reason("tool results", "as user messages", why, at_start=True))
        if not self.user_after_result:
            found.append(Reason("user messages behind results", "behind an empty answer", f"{_WHY}, which wants one"))
        if self.short_ids:
            found.append(Reason("tool call ids", "of nine letters and digits", f"{_WHY}, which refuses others"))
        return found


_DEVELOPER = {
    "known": ("as they are", f"{_WHY}, which knows the role"),
    "alone": ("as they are where alone, else as system messages", f"{_WHY}, which takes one of them"),
    "unknown": ("as system messages", f"{_WHY}, which does not know the role"),
}
_SYSTEM = {
    "anywhere": "where they are",
    "leading": "at the beginning; later ones join the last of these",
    "one": "joined into one at the beginning",
    "none": "in front of the first user message",
}
_ARGUMENTS = {"object": "objects", "text": "text"}
_CALLS = {
    "alone": ("without text", f"{_WHY}, which leaves out the text beside a call"),
    "apart": ("apart from text", f"{_WHY}, which leaves out a call beside text"),
    "none": ("as JSON in the text", f"{_WHY}, which leaves calls out"),
}


def find_capabilities(render: Render) -> TemplateCapabilities:
    """Try a template; `render` gives a conversation's text, and raises RequestError where the template refuses it."""
    trial = _Trial(render)
    if not trial.keeps_users():
        # It wants something else than conversations, and says so itself.
        return TemplateCapabilities(tried=False)
    system = trial.system()
    trial.try_parts("assistant", lambda said: [trial.user(), said, trial.user("zqnext")])
    calls = trial.calls()
    return TemplateCapabilities(
        developer=trial.developer(),
        system=system,
        parts=frozenset(trial.parts),
        only_parts=frozenset(trial.only_parts),
        **calls,
    )


class _Trial:
    """One template's trial. Later steps go by what earlier ones have found."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self.parts: set[str] = set()
        self.only_parts: set[str] = set()

    def text(self, *messages: Message) -> str | None:
        """The conversation's text in lower case; None where the template refuses it."""
        try:
            return self._render(messages).lower()
        except RequestError:
            return None

    def keeps(self, words: Sequence[str], *messages: Message) -> bool:
        """Whether all words are in the text."""
        text = self.text(*messages)
        return text is not None and all(word in text for word in words)

    def said(self, role: str, word: str) -> Message:
        """A message of one word, in the form that the role wants."""
        return _one_part(role, word) if role in self.only_parts else {"role": role, "content": word}

    def user(self, word: str = "zquser") -> Message:
        return self.said("user", word)

    def keeps_users(self) -> bool:
        return self.try_parts("user", lambda said: [said])

    def try_parts(self, role: str, around: Callable[[Message], list[Message]]) -> bool:
        """Find out in which forms a role's content is kept; False where it is in none."""
        plain = self.text(*around({"role": role, "content": "zqone\nzqtwo"}))
        kept = plain is not None and "zqone" in plain and "zqtwo" in plain
        parts = [{"type": "text", "text": word} for word in ("zqone", "zqtwo")]
        listed = self.text(*around({"role": role, "content": parts})) or ""
        # Where a list was written as such, the names of its fields are there too.
        as_such = _fields_in(listed) > _fields_in(plain or "")
        if "zqone" in listed and "zqtwo" in listed and not as_such:
            self.parts.add(role)
            if not kept:
                self.only_parts.add(role)
            return True
        if not kept and self.keeps(["zqone", "zqtwo"], *around(_one_part(role, "zqone\nzqtwo"))):
            self.only_parts.add(role)
            return True
        return kept

    def system(self) -> Literal["anywhere", "leading", "one", "none"]:
        if not self.try_parts("system", lambda said: [said, self.user()]):
            return "none"
        first, second, third = (self.said("system", word) for word in ("zqfirst", "zqsecond", "zqthird"))
        if not self.keeps(["zqfirst", "zqsecond"], first, second, self.user()):
            return "one"
        answer = self.said("assistant", "zqanswer")
        later = (first, self.user(), second, answer, self.user("zqnext"), third)
        return "anywhere" if self.keeps(["zqfirst", "zqsecond", "zqthird"], *later) else "leading"

    def developer(self) -> Literal["known", "alone", "unknown"]:
        """Whether it knows the role, and does not do the same with one that there is not."""
        told: Message = {"role": "developer", "content": "zqtold"}
        known = self.text(told, self.user())
        unknown = self.text({"role": "zqrole", "content": "zqtold"}, self.user())
        if known is None or "zqtold" not in known or known.replace("developer", "zqrole") == unknown:
            return "unknown"
        system = self.said("system", "zqsystem")
        both = (system, told, self.user(), self.said("assistant", "zqanswer"), {**told, "content": "zqlater"})
        kept = self.keeps(["zqsystem", "zqtold", "zqlater"], *both, self.user("zqnext"))
        return "known" if kept and self.keeps(["zqsystem", "zqtold"], told, system, self.user()) else "alone"

    def calls(self) -> dict[str, Any]:
        """How calls and their results must be given."""
        for identifier in (_LONG_ID, _SHORT_ID):
            for form, arguments in (("object", _OBJECT), ("text", _TEXT)):
                kept: list[NoContent] = [
                    each
                    for each in ("missing", "null", "empty")
                    if self._keeps_call(_FORMS[each], arguments, identifier)
                ]
                if kept:
                    return self._of_calls(form, kept, identifier)
        answered = [self.user(), self.said("assistant", "zqanswer")]
        return {"calls": "none", "tool_role": self._tries_tool(answered, _LONG_ID)}

    def _of_calls(self, form: str, kept: list[NoContent], identifier: str) -> dict[str, Any]:
        arguments = _OBJECT if form == "object" else _TEXT
        called = [self.user(), _call(_FORMS[kept[0]], arguments, identifier)]
        found = {
            "arguments": form,
            "no_content": kept[0],
            "empty_content": "empty" if "empty" in kept else kept[0],
            "tool_role": self._tries_tool(called, identifier),
            "short_ids": identifier == _SHORT_ID,
        }
        result = _result(self.said("tool", "zqresult"), identifier)
        beside = self.text(self.user(), _call(self.said("assistant", "zqsaid"), arguments, identifier), result) or ""
        if "zqname" not in beside:
            found["calls"] = "apart"
        else:
            found["calls"] = "beside text" if "zqsaid" in beside else "alone"
        before = (*called, result)
        words, after = ["zqname", "zqnext"], self.user("zqnext")
        found["user_after_result"] = self.keeps(words, *before, after) or not self.keeps(
            words, *before, {"role": "assistant", "content": ""}, after
        )
        two = _call(_FORMS[kept[0]], arguments, identifier, "zqother")
        found["parallel_calls"] = self.keeps(["zqname", "zqother"], self.user(), two, result)
        cut = (self.user(), _call(_FORMS[kept[0]], _CUT, identifier), result)
        found["cut_arguments"] = self.keeps(["zqname", "zqkey", "zqval"], *cut)
        return found

    def _tries_tool(self, before: list[Message], identifier: str) -> bool:
        return self.try_parts("tool", lambda said: [*before, _result(said, identifier)])

    def _keeps_call(self, content: Message, arguments: Any, identifier: str) -> bool:
        result = _result(self.said("tool", "zqresult"), identifier)
        text = self.text(self.user(), _call(content, arguments, identifier), result)
        if text is None or any(word not in text for word in ("zqname", "zqkey", "zqvalue")):
            return False
        if text.count("none") > (self.text(self.user()) or "").count("none"):
            # A content that is null was written.
            return False
        if arguments == _TEXT:
            return _TEXT in text
        # Not as Python writes it.
        return str(_OBJECT) not in text


def _one_part(role: str, text: str) -> Message:
    return {"role": role, "content": [{"type": "text", "text": text}]}


def _fields_in(text: str) -> int:
    return text.count("'type'") + text.count('"type"')


def _call(content: Message, arguments: Any, identifier: str, *others: str) -> Message:
    calls = [
        {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}
        for name in ("zqname", *others)
    ]
    return {"role": "assistant", **content, "tool_calls": calls}


def _result(said: Message, identifier: str) -> Message:
    return {**said, "tool_call_id": identifier, "name": "zqname"}
