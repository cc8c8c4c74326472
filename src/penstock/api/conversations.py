"""For how long a request is kept as a part of a conversation, so that the next turn finds it."""

from collections.abc import Mapping

from msgspec.structs import replace
from starlette.requests import Request

from penstock.api.extras import MAX_NAME_LENGTH
from penstock.api.job import Job
from penstock.api.requests import CommonFields
from penstock.core.errors import InvalidParameter
from penstock.core.request import SESSION
from penstock.engine.interface import ModelInfo

# From its last turn on.
CONVERSATION_SECONDS = 3600.0
_RETENTIONS: Mapping[str, float] = {"in_memory": 0.0, "24h": 86400.0}


def kept_as_asked(job: Job, fields: CommonFields, model: ModelInfo) -> Job:
    """The job, kept as its fields ask for; where nothing is kept, they have no effect, and are named as such.

    Raises InvalidParameter where a field is not what it can be.
    """
    key, retention = fields.prompt_cache_key, fields.prompt_cache_retention
    if key is not None and len(key) > MAX_NAME_LENGTH:
        raise InvalidParameter("prompt_cache_key", f"must have at most {MAX_NAME_LENGTH} characters.")
    if retention is not None and retention not in _RETENTIONS:
        raise InvalidParameter("prompt_cache_retention", f"{retention[:40]!r} is not one of {', '.join(_RETENTIONS)}.")
    seconds = _RETENTIONS[retention or "in_memory"]
    if not model.keeps_conversations:
        asked = {"prompt_cache_key": key is not None, "prompt_cache_retention": seconds > 0}
        return replace(job, ignored=(*job.ignored, *(name for name, wanted in asked.items() if wanted)))
    return replace(job, keep_whole=seconds or (CONVERSATION_SECONDS if key is not None else 0.0))


def kept_as_conversation(job: Job, model: ModelInfo) -> Job:
    """The job of a turn of a conversation, which is kept for an hour at least, where anything is kept."""
    if not model.keeps_conversations:
        return job
    return replace(job, keep_whole=max(job.keep_whole, CONVERSATION_SECONDS))


def is_conversation(request: Request) -> bool:
    """Whether a request's head names the conversation that it is a part of."""
    return bool(request.headers.get(SESSION.decode()))
