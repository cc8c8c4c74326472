"""What answers of OpenAI's API look like: types for the API's description, to which the tests hold every answer.

Answers are written field by field where they come from, since a stream must cost little; these say what comes out.
"""

from typing import Literal

import msgspec

from penstock.api.kv_policy import ContextUsage

# Only hosted models end with "content_filter".
Finish = Literal["stop", "length", "tool_calls", "content_filter"]


class PromptTokensDetails(msgspec.Struct, forbid_unknown_fields=True):
    """How much of the prompt came from the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, forbid_unknown_fields=True):
    """How many of the output tokens are reasoning, shown or not, without the marks around it."""

    reasoning_tokens: int


class Usage(msgspec.Struct, forbid_unknown_fields=True):
    """Tokens of a request's prompt and output."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    kv_policy: ContextUsage | msgspec.UnsetType = msgspec.UNSET


class TokenLogprob(msgspec.Struct, forbid_unknown_fields=True):
    """One token, its natural log probability, and its bytes, None where it has none."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChosenLogprob(TokenLogprob):
    """The token that was chosen, and the most likely ones."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(msgspec.Struct, forbid_unknown_fields=True):
    """One entry for each token."""

    content: list[ChosenLogprob]
    refusal: None


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True):
    """A function's name, and its arguments as JSON text."""

    name: str
    arguments: str


class CallAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True):
    """The model's message; without content where it only calls tools."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[CallAnswer] | msgspec.UnsetType = msgspec.UNSET


class BeamLikelihood(msgspec.Struct, forbid_unknown_fields=True):
    """How likely an output of beam search is: the sum of its log probabilities, and this with the length penalty."""

    cumulative_logprob: float
    score: float


class ChatChoice(msgspec.Struct, forbid_unknown_fields=True):
    """One sample of a chat's answer, whole."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    stop_reason: int | str | None
    seed: int
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    beam: BeamLikelihood | msgspec.UnsetType = msgspec.UNSET


class PromptLogprob(msgspec.Struct, forbid_unknown_fields=True):
    """How likely a token of the prompt was."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class ChatCompletion(msgspec.Struct, forbid_unknown_fields=True):
    """The answer of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    seed: int
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None
    service_tier: str | msgspec.UnsetType = msgspec.UNSET


class FunctionDelta(msgspec.Struct, forbid_unknown_fields=True):
    """More of a call: its name comes first, then the text of its arguments."""

    arguments: str
    name: str | msgspec.UnsetType = msgspec.UNSET


class CallDelta(msgspec.Struct, forbid_unknown_fields=True):
    """More of the call with this number."""

    index: int
    function: FunctionDelta
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: Literal["function"] | msgspec.UnsetType = msgspec.UNSET


class ChatDelta(msgspec.Struct, forbid_unknown_fields=True):
    """What a chunk adds to a message; fields that add nothing are left out."""

    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | None | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[CallDelta] | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct, forbid_unknown_fields=True):
    """What a chunk adds to one sample of a chat."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None
    stop_reason: int | str | None | msgspec.UnsetType = msgspec.UNSET
    seed: int | msgspec.UnsetType = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    beam: BeamLikelihood | msgspec.UnsetType = msgspec.UNSET


class ChatChunk(msgspec.Struct, forbid_unknown_fields=True):
    """One event of a streamed chat; the last one, where usage is asked for, has no choices.

    The first event of each choice has the prompt's ids, where they are asked for.
    """

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    seed: int | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    obfuscation: str | msgspec.UnsetType = msgspec.UNSET
    service_tier: str | msgspec.UnsetType = msgspec.UNSET
    usage: Usage | None | msgspec.UnsetType = msgspec.UNSET


class CompletionLogprobs(msgspec.Struct, forbid_unknown_fields=True):
    """Columns with one entry for each token; offsets count characters of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, forbid_unknown_fields=True):
    """One sample of one prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: int | str | None
    seed: int
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    beam: BeamLikelihood | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None


class Completion(msgspec.Struct, forbid_unknown_fields=True):
    """The answer of `/v1/completions`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    seed: int | msgspec.UnsetType = msgspec.UNSET
    service_tier: str | msgspec.UnsetType = msgspec.UNSET


class CompletionChunkChoice(msgspec.Struct, forbid_unknown_fields=True):
    """More of one sample of one prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: int | str | None | msgspec.UnsetType = msgspec.UNSET
    seed: int | msgspec.UnsetType = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    beam: BeamLikelihood | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class CompletionChunk(msgspec.Struct, forbid_unknown_fields=True):
    """One event of a streamed completion; the last one, where usage is asked for, has no choices."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    seed: int | msgspec.UnsetType = msgspec.UNSET
    obfuscation: str | msgspec.UnsetType = msgspec.UNSET
    service_tier: str | msgspec.UnsetType = msgspec.UNSET
    usage: Usage | None | msgspec.UnsetType = msgspec.UNSET


class EmbeddingUsage(msgspec.Struct, forbid_unknown_fields=True):
    """Tokens of a request for vectors."""

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Embedding(msgspec.Struct, forbid_unknown_fields=True):
    """One vector, as numbers, which may be whole, or as base64 of float32, little-endian; or a vector of each token."""

    object: Literal["embedding"]
    index: int
    embedding: list[float | list[float]] | str


class Embeddings(msgspec.Struct, forbid_unknown_fields=True):
    """The answer of `/v1/embeddings`."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class ModelCard(msgspec.Struct, forbid_unknown_fields=True):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int


class ModelList(msgspec.Struct, forbid_unknown_fields=True):
    """The models that the server answers for."""

    object: Literal["list"]
    data: list[ModelCard]


class Tokens(msgspec.Struct, forbid_unknown_fields=True):
    """The tokens of a prompt, and what the model takes at most."""

    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class Prompt(msgspec.Struct, forbid_unknown_fields=True):
    """The text that tokens stand for."""

    prompt: str
