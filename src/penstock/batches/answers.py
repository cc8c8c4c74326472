"""What files and batches look like: types for the API's description."""

from typing import Literal

import msgspec

from penstock.storage.batches import BatchProblem, BatchStatus


class FileAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """A stored file, without its content."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: str
    status_details: None


class FileList(msgspec.Struct, forbid_unknown_fields=True):
    """A page of the list of stored files."""

    object: Literal["list"]
    data: list[FileAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchErrors(msgspec.Struct, forbid_unknown_fields=True):
    """Why a batch has failed."""

    object: Literal["list"]
    data: list[BatchProblem]


class BatchCounts(msgspec.Struct, forbid_unknown_fields=True):
    """How many requests a batch has, and what they have come to."""

    total: int
    completed: int
    failed: int


class BatchAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """A batch; times are in seconds since 1970, and null while what they tell has not happened."""

    id: str
    object: Literal["batch"]
    endpoint: str
    input_file_id: str
    completion_window: Literal["24h"]
    status: BatchStatus
    status_details: str | None
    errors: BatchErrors | None
    output_file_id: str | None
    error_file_id: str | None
    metadata: dict[str, str] | None
    request_counts: BatchCounts
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None


class BatchList(msgspec.Struct, forbid_unknown_fields=True):
    """A page of the list of batches."""

    object: Literal["list"]
    data: list[BatchAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Upload(msgspec.Struct, forbid_unknown_fields=True):
    """The parts of an upload: the file's contents, and what it is for."""

    file: str
    purpose: Literal["batch"]
