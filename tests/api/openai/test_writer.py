"""Answers of completions and chats, as they are put together."""

import json

from penstock.api.job import Job
from penstock.api.openai.writer import COMPLETION, ResponseWriter
from penstock.core.plan import Ending
from penstock.core.sampling import SamplingParams
from penstock.engine.interface import RequestOutput, SampleDelta


def test_cached_tokens_count_once_however_many_engines_compute_a_request() -> None:
    """Each engine has ids of its own."""
    job = Job(prompts=[[1, 2, 3], [1, 2]], params=[SamplingParams(max_tokens=2)] * 2)
    writer = ResponseWriter(COMPLETION, job, "model", None)
    for request_id, sample, finish in ((0, 0, None), (1 << 32, 0, "length"), (1, 1, None), (2 << 32, 1, "length")):
        delta = SampleDelta(sample, "a", [7], ending=finish and Ending(finish))  # type: ignore[arg-type]
        writer.add(RequestOutput(request_id, [delta], 3 - sample, 2 - sample, 5, finish is not None))
    assert json.loads(writer.body())["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
