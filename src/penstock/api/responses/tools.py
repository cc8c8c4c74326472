"""Tools of `/v1/responses`: functions of the client, some of them in namespaces, and those of a hosted API."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock.api.fields import FieldReader, FieldRules, HintField, RefusedField
from penstock.api.parsing import Names
from penstock.api.responses.schema import FunctionTool, NamespaceTool
from penstock.core.errors import InvalidParameter

TOOL_RULES: FieldRules = {
    "allowed_callers": RefusedField("tools are called directly only; leave it out.", (["direct"],)),
    "async": RefusedField("is not supported; leave it out.", (False,)),
    "defer_loading": HintField("All tools are shown to the model at once.", (False,)),
    "output_schema": HintField("Chat templates have no place for it."),
}
# Run by the server of a hosted API. A model that is not shown one answers without it.
HOSTED_TOOLS = frozenset(
    {
        "code_interpreter",
        "computer",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "mcp",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)
_KINDS = ("function", "namespace")
# In the place of a tool that has no effect, so that the others keep theirs, which errors name.
_NO_TOOLS: dict[str, Any] = {"type": "namespace", "name": "", "tools": []}


def settle_tools(given: dict[str, Any], reader: FieldReader) -> None:
    """Take out of a body's tools what has no effect; raises InvalidParameter for kinds that are refused."""
    if isinstance(given.get("tools"), list):
        given["tools"] = [_settled(tool, f"tools[{index}]", reader) for index, tool in enumerate(given["tools"])]
    choice = given.get("tool_choice")
    if isinstance(choice, dict) and isinstance(choice.get("type"), str) and choice["type"] != "function":
        raise InvalidParameter("tool_choice.type", f"{choice['type'][:40]!r} is not supported; only 'function'.")


def _settled(tool: Any, place: str, reader: FieldReader) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind in HOSTED_TOOLS:
        reader.ignore(f"{place}.{kind}")
        return _NO_TOOLS
    _settle(tool, place, _KINDS, reader)
    if kind == "namespace" and isinstance(tool.get("tools"), list):
        for index, function in enumerate(tool["tools"]):
            _settle(function, f"{place}.tools[{index}]", ("function",), reader)
    return tool


def _settle(tool: Any, place: str, kinds: Sequence[str], reader: FieldReader) -> None:
    if not isinstance(tool, dict):
        return
    kind = tool.get("type")
    if isinstance(kind, str) and kind not in kinds:
        known = " and ".join(map(repr, kinds))
        message = f"{kind[:40]!r} is not supported here; only {known}, tools of the client."
        raise InvalidParameter(f"{place}.type", message)
    reader.settle(tool, TOOL_RULES, f"{place}.")


class ToolNames:
    """What the model calls a request's functions: by their own names, or with the namespace where others have them.

    Attributes:
        functions: all, those of namespaces too, under the names that the model knows.
    """

    def __init__(self, tools: Sequence[FunctionTool | NamespaceTool]) -> None:
        placed: list[tuple[str, str | None, FunctionTool]] = []
        for index, tool in enumerate(tools):
            place = f"tools[{index}]"
            if isinstance(tool, NamespaceTool):
                inner = enumerate(tool.tools)
                placed += [(f"{place}.tools[{number}]", tool.name, function) for number, function in inner]
            else:
                placed.append((place, None, tool))
        times = Counter(function.name for _, _, function in placed)
        self.functions: dict[str, FunctionTool] = {}
        self._places = [place for place, _, _ in placed]
        self._told: dict[str, tuple[str | None, str]] = {}
        self._known: dict[tuple[str | None, str], str] = {}
        for place, namespace, function in placed:
            plain = namespace is None or times[function.name] == 1
            name = function.name if plain else f"{namespace}__{function.name}"
            if name in self.functions:
                message = f"two tools are called {name[:64]!r}; give each a name of its own."
                raise InvalidParameter(f"{place}.name", message)
            self.functions[name] = function
            self._told[name] = (namespace, function.name)
            self._known.setdefault((None, function.name), name)
            self._known.setdefault((namespace, function.name), name)

    @property
    def places(self) -> Names:
        """Which fields of the request the functions of its chat are made from."""
        return ((r"tools\[(\d+)\]\.function", lambda found: self._places[int(found[1])]),)

    def known(self, namespace: str | None, name: str) -> str:
        """The name that the model knows a function by; without a namespace, the first that is called so."""
        return self._known.get((namespace, name), name)

    def told(self, known: str) -> dict[str, str]:
        """The fields of an item that say which function was called."""
        namespace, name = self._told.get(known, (None, known))
        return {"name": name} if namespace is None else {"name": name, "namespace": namespace}
