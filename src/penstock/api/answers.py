"""What all endpoints answer alike: types for the API's description, to which the tests hold every answer."""

import msgspec


class ErrorFields(msgspec.Struct, forbid_unknown_fields=True):
    """What was wrong: one sentence, its kind, the field that is the cause if there is one, and a stable code."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """The body of every refusal."""

    error: ErrorFields


class Deleted(msgspec.Struct, forbid_unknown_fields=True):
    """The object that was deleted, by its id."""

    id: str
    object: str
    deleted: bool
