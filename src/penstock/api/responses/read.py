"""From the fields of a response to its job."""

from collections.abc import Callable
from typing import Any

from penstock.api.fields import FieldReader
from penstock.api.job import Job
from penstock.api.reading import Reading, told
from penstock.api.responses.items import Item, listed, parse_items
from penstock.api.responses.schema import ResponsesFields
from penstock.api.responses.tools import ToolNames
from penstock.api.responses.translate import NAMES, chat_of_response
from penstock.engine.interface import ModelInfo


def response_job(
    fields: ResponsesFields, earlier: Callable[[], list[Item]], reader: FieldReader, reading: Reading, model: ModelInfo
) -> tuple[Job, list[dict[str, Any]], ToolNames]:
    """The job, the input's items as they are listed, and the names of tools.

    `earlier` makes the items of the conversation before. Raises RequestError.
    """
    items, names = parse_items(fields.input, reader), ToolNames(fields.tools or ())
    chat = chat_of_response(fields, names, earlier(), items)
    job = reading.chat(chat, (*names.places, *NAMES), model)
    return told(reader, job), listed(items), names
