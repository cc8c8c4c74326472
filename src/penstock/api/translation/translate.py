"""From the fields of a translation to what the engine is asked for."""

from penstock.api.job import Job
from penstock.api.resolve import MAX_CHOICES, NO_TOKENIZER, check_ids, check_model_name
from penstock.api.sources import check_source
from penstock.api.translation.languages import check_named, language_of, pair_of
from penstock.api.translation.schema import TranslateFields
from penstock.core.beam_params import BeamSearchParams
from penstock.core.errors import InvalidParameter
from penstock.core.sampling import SamplingParams
from penstock.core.sourced import Sourced
from penstock.engine.interface import ModelInfo
from penstock.text.languages import source_ids
from penstock.text.tokenizer import Tokenizer, unused_marker

MAX_ALTERNATIVES = 15
_NO_ENCODER = "it is no encoder–decoder; ask it to translate at /v1/chat/completions."


def translation(fields: TranslateFields, model: ModelInfo, tokenizer: Tokenizer | None) -> Job:
    """The job of a body. Raises RequestError with the cause."""
    check_model_name(fields.model, model)
    sourced = model.sourced
    if sourced is None:
        raise InvalidParameter("model", _NO_ENCODER)
    if tokenizer is None:
        raise InvalidParameter("q", NO_TOKENIZER)
    check_named(fields.source)
    texts = [fields.q] if isinstance(fields.q, str) else fields.q
    if not texts or len(texts) > MAX_CHOICES:
        raise InvalidParameter("q", f"has {len(texts)} texts; send 1 to {MAX_CHOICES}.")
    reader = SourceReader(fields, sourced, tokenizer)
    prompts = [reader.read(text, "q" if isinstance(fields.q, str) else f"q[{at}]") for at, text in enumerate(texts)]
    for prompt in prompts:
        check_ids(prompt, model, "q")
        check_source(len(prompt), model, "q")
    params = _params(fields.alternatives or 0, len(texts), model)
    return Job(
        prompts=prompts,
        params=[params] * len(prompts),
        forced_bos=reader.forced_bos,
        ignored=reader.ignored,
    )


def _params(alternatives: int, texts: int, model: ModelInfo) -> SamplingParams:
    """The likeliest next token each time, or the likeliest outputs, found with a beam for each."""
    if not 0 <= alternatives <= MAX_ALTERNATIVES:
        raise InvalidParameter("alternatives", f"{alternatives} is outside 0..{MAX_ALTERNATIVES}.")
    if texts * (1 + alternatives) > MAX_CHOICES:
        raise InvalidParameter(
            "alternatives", f"{texts} texts with {alternatives} alternatives each are more than {MAX_CHOICES} outputs."
        )
    tokens = model.room_behind(0)
    if not alternatives:
        return SamplingParams(temperature=0.0, max_tokens=tokens)
    return BeamSearchParams(beam_width=1 + alternatives, max_tokens=tokens).sampling()


class SourceReader:
    """Makes sources of texts in one language.

    Attributes:
        forced_bos: the token of the language that they are translated into; None where the model has none for it.
        ignored: fields without effect, since the model's files do not say which languages it translates.
    """

    def __init__(self, fields: TranslateFields, sourced: Sourced, tokenizer: Tokenizer) -> None:
        """Raises InvalidParameter where the model does not translate from the one language into the other."""
        self._tokenizer = tokenizer
        self._languages = sourced.languages
        self._language: str | None = None
        self.forced_bos: int | None = None
        self._before = ""
        self.ignored: tuple[str, ...] = ()
        if sourced.languages:
            self._language = language_of(fields.source, sourced, "source")
            self.forced_bos = sourced.languages[language_of(fields.target, sourced, "target")]
        elif sourced.pairs:
            self._before = sourced.pairs[pair_of(fields.source, fields.target, sourced)]
        else:
            self.ignored = ("source", "target")

    def read(self, text: str, param: str) -> list[int]:
        """The ids of a text with what the model needs around it; special tokens in the text are text."""
        if not text.strip():
            raise InvalidParameter(param, "it is empty; at least one character is needed.")
        marker = unused_marker([text])
        if marker is None:
            raise InvalidParameter(param, "has all noncharacters of Unicode; leave one out.")
        whole = self._before + self._tokenizer.mark_special(text, marker)
        ids = self._tokenizer.encode_marked(whole, marker)
        return source_ids(self._tokenizer, ids, self._languages, self._language)
