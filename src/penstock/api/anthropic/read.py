"""From the bodies of Anthropic's API to jobs."""

from collections.abc import Callable

from msgspec.structs import replace

from penstock.api.anthropic.marks import kept_prefixes, marks_of
from penstock.api.anthropic.schema import Fields, MessagesFields, PromptFields, parse
from penstock.api.anthropic.thinking import Disabled, asks_for_reasoning
from penstock.api.anthropic.translate import NAMES, chat_of_messages, chat_of_prefix, chat_of_prompt
from penstock.api.fields import FieldReader
from penstock.api.job import Job
from penstock.api.parsing import in_terms_of
from penstock.api.reading import Reading, told
from penstock.api.resolve import check_model_name
from penstock.engine.interface import ModelInfo


class MessagesReader:
    """Reads what is asked of one model."""

    def __init__(self, reading: Reading, model: Callable[[], ModelInfo]) -> None:
        self._reading, self._model = reading, model

    def resolve(self, body: bytes) -> Job:
        """The job that a body asks for. Raises RequestError."""
        reader, variables = self._reading.reader(), self._reading.resolver.template_variables
        fields = self._parse(body, MessagesFields, reader)
        marks = marks_of(fields)
        job = self._reading.chat(chat_of_messages(fields, variables), NAMES, self._model())
        if marks and job.kv_policy is not None:
            # Nothing of a context is kept that may have holes.
            reader.ignore("cache_control")
        elif marks:
            job = replace(job, keep=kept_prefixes(marks, job.prompts[0], self._encode_prefix))
        return told(reader, job)

    def _parse(self, body: bytes, kind: type[Fields], reader: FieldReader) -> Fields:
        """The fields; what they say of reasoning in vain is told."""
        fields = parse(body, kind, reader)
        off = isinstance(fields.thinking, Disabled)
        if off and fields.output_config is not None and fields.output_config.effort not in (None, "none"):
            # What does not reason does so with no effort.
            reader.ignore("output_config.effort")
        if off and self._reading.resolver.always_reasons:
            reader.ignore("thinking")
        if self._reading.resolver.reasons or not asks_for_reasoning(fields.thinking):
            return fields
        reader.ignore("thinking")
        return replace(fields, thinking=None)

    def _encode_prefix(self, fields: PromptFields) -> list[int]:
        resolver = self._reading.resolver
        return resolver.chat_prompt(chat_of_prefix(fields, resolver.template_variables))

    def count(self, body: bytes, reader: FieldReader) -> int:
        """The tokens of its prompt. Raises RequestError."""
        asked, resolver = self._parse(body, PromptFields, reader), self._reading.resolver
        # Keeping changes no count, but a request that is refused there has none.
        marks_of(asked)
        fields = chat_of_prompt(asked, resolver.template_variables)
        with in_terms_of(NAMES):
            check_model_name(fields.model, self._model())
            return len(resolver.chat_prompt(fields))
