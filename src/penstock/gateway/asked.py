"""What a gateway reads of a request's body: who it is for, and what its prompt begins with. Replicas check the rest."""

from hashlib import blake2b
from typing import Annotated, Any

import msgspec

from penstock.api.extras import TIERS
from penstock.core.errors import RequestError
from penstock.routing.keys import Keys, following, namespace

# Bytes of a token in the mean, where texts are not tokenized.
TOKEN_BYTES = 4
# Bytes of text that stand for a block where tokens are not known, and the most blocks of a prompt that are looked at.
TEXT_BLOCK = 256
MOST_BLOCKS = 1024
# Bytes of a conversation in which its beginning is looked for.
_MOST_SESSION = 64 * 1024
# Characters of a model's name.
MOST_NAME = 512
# The fields with which answers are bounded, by the path; servers may let others pass, and not look at them.
BOUNDS = {
    "/v1/chat/completions": ("max_completion_tokens", "max_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/messages": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
}
# Messages that all requests of one conversation begin with, of those that have had an answer.
_OPENING = 2


class Asked(msgspec.Struct, frozen=True):
    """The fields that matter on the way."""

    model: Annotated[str, msgspec.Meta(max_length=MOST_NAME)] | None = None
    user: str | None = None
    previous_response_id: str | None = None
    priority: int | None = None
    service_tier: str | None = None
    timeout: float | None = None
    stream: bool | None = None
    # Replicas say what is wrong with these.
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    n: Any = None
    alternatives: Any = None
    system: msgspec.Raw = msgspec.Raw(b"")
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    tools: msgspec.Raw = msgspec.Raw(b"")
    # Texts of translations, of scores and of TEI's requests.
    q: msgspec.Raw = msgspec.Raw(b"")
    query: msgspec.Raw = msgspec.Raw(b"")
    queries: msgspec.Raw = msgspec.Raw(b"")
    documents: msgspec.Raw = msgspec.Raw(b"")
    text_1: msgspec.Raw = msgspec.Raw(b"")
    text_2: msgspec.Raw = msgspec.Raw(b"")
    texts: msgspec.Raw = msgspec.Raw(b"")
    inputs: msgspec.Raw = msgspec.Raw(b"")

    @property
    def rank(self) -> int:
        """Its priority, or that of its tier: lower ones come first."""
        if self.priority is not None:
            return self.priority
        return TIERS.get(self.service_tier or "", 0)

    def bound(self, path: str) -> tuple[str, int] | None:
        """Tokens of each answer at most, behind the field that says so; None where none does.

        Of two that differ the larger one counts: servers do not agree on which they take.
        """
        given = ((name, getattr(self, name)) for name in BOUNDS.get(path, ()))
        usable = [(name, most) for name, most in given if isinstance(most, int) and most >= 0]
        return max(usable, key=lambda each: each[1], default=None)

    @property
    def answers(self) -> int:
        """How many it asks for: `n` of each of its prompts, or `alternatives` beside the translation of each text."""
        samples = self.n if isinstance(self.n, int) else 1
        others = self.alternatives if isinstance(self.alternatives, int) else 0
        return max(1, samples, 1 + others) * self.prompts

    @property
    def tokens(self) -> int:
        """How many the prompt has, about: a quarter of its bytes."""
        return max(1, sum(map(len, self._parts)) // TOKEN_BYTES)

    @property
    def beginning(self) -> bytes:
        """What the prompt begins with, in the order in which templates put it together."""
        parts, left = [], MOST_BLOCKS * TEXT_BLOCK
        for part in self._parts:
            parts.append(bytes(memoryview(part)[:left]))
            left -= len(parts[-1])
        return b"".join(parts)

    @property
    def session(self) -> str | None:
        """What its client says of the requests that it belongs to; else what its conversation begins with."""
        named = self.previous_response_id or self.user
        if named is not None or not 0 < len(memoryview(self.messages)) <= _MOST_SESSION:
            return named
        try:
            messages = msgspec.json.decode(self.messages, type=list[msgspec.Raw])
        except msgspec.DecodeError:
            # The replica says what is wrong.
            return None
        if len(messages) <= _OPENING:
            return None
        return blake2b(b"".join(map(bytes, (self.system, *messages[:_OPENING]))), digest_size=8).hexdigest()

    @property
    def prompts(self) -> int:
        """How many `prompt` or `q` has: one, or those of a list of texts or of lists of tokens."""
        content = bytes(self.prompt) or bytes(self.q)
        if not content.startswith(b"["):
            return 1
        prompts = msgspec.json.decode(content, type=list[msgspec.Raw])
        return len(prompts) if prompts and bytes(prompts[0]).startswith((b'"', b"[")) else 1

    @property
    def _parts(self) -> tuple[memoryview, ...]:
        prompts = (self.tools, self.system, self.messages, self.prompt, self.input)
        texts = (self.query, self.queries, self.documents, self.text_1, self.text_2, self.texts, self.inputs, self.q)
        return tuple(map(memoryview, (*prompts, *texts)))


_decoder = msgspec.json.Decoder(Asked)


def parse_asked(body: bytes) -> Asked:
    """Raises RequestError for what is no JSON object, or has a field of another type."""
    try:
        return _decoder.decode(body)
    except RecursionError:
        raise RequestError("The body cannot be read: it is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"The body cannot be read: {error}.") from None


def text_keys(content: bytes, root: int) -> Keys:
    """Keys of the blocks of a prompt's text."""
    found, parent = [], root
    last = min(len(content) - TEXT_BLOCK, (MOST_BLOCKS - 1) * TEXT_BLOCK)
    for start in range(0, last + 1, TEXT_BLOCK):
        parent = following(parent, content[start : start + TEXT_BLOCK])
        found.append(parent)
    return Keys(found, TEXT_BLOCK // TOKEN_BYTES)


def text_root(model: str) -> int:
    """What sets prompts of one model apart from others'."""
    return namespace(b"text", model.encode())
