"""A server's part where one computes prompts and another goes on with them; see `core/handover.py`."""

import msgspec
from starlette.requests import Request

from penstock.api.job import Job
from penstock.api.resumption import header_of
from penstock.core.errors import InvalidParameter
from penstock.core.handover import HANDOVER, LEASE_SECONDS, OFFER, Offer, offer_in
from penstock.engine.interface import EngineClient


def handing_over(request: Request, job: Job, engine: EngineClient) -> Job:
    """The job as a gateway wants it: handed over, or gone on with where another server has computed its prompt.

    Raises InvalidParameter.
    """
    given = header_of(request, OFFER)
    if given is not None:
        offer = offer_in(given.encode("latin-1"))
        if offer is None or offer.cached < 0:
            raise InvalidParameter(OFFER.decode(), "is not what a server that computes prompts has told.")
        if len(job.prompts) != 1:
            raise InvalidParameter(
                OFFER.decode(), "is of one prompt, and the request has another number; leave it out."
            )
        # A prompt is never more cached than whole, whatever the other server has made of the request.
        cached = min(offer.cached, job.prompt_tokens)
        return msgspec.structs.replace(job, offer=Offer(offer.place, cached))
    if header_of(request, HANDOVER) is None:
        return job
    # What is offered stays for those who pull it as long as their lease says.
    return msgspec.structs.replace(job, hands_over=True, keep_whole=LEASE_SECONDS if _can(job, engine) else 0.0)


def _can(job: Job, engine: EngineClient) -> bool:
    """Whether anything is gained by another server's having computed the prompt."""
    return (
        bool(engine.model.offers_at)
        and job.pooling is None
        and job.kv_policy is None
        and len(job.prompts) == 1
        and job.params[0].beam is None
        and job.params[0].prompt_logprobs is None
        and job.params[0].max_tokens != 0
    )


def offered(job: Job, engine: EngineClient, cached: int) -> Offer:
    """What a server tells that has computed a prompt; nothing where it has not."""
    return Offer(engine.model.offers_at, cached) if job.keep_whole else Offer()
