"""One request of a batch or over HTTP, without either: from a body to a job, and from there to an answer."""

from collections.abc import Callable

import msgspec

from penstock.api.generation import Writer
from penstock.api.job import Job
from penstock.observability.metrics import Endpoint


class JobEndpoint(msgspec.Struct, frozen=True):
    """What an endpoint does with one request.

    Attributes:
        name: of the endpoint, in figures.
        resolve: the job that a body asks for; raises RequestError.
        writer: what writes the job's answer.
    """

    name: Endpoint
    resolve: Callable[[bytes], Job]
    writer: Callable[[Job], Writer]
