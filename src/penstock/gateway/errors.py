"""What can go wrong between a gateway and its replicas."""

from penstock.core.errors import Overloaded, PenstockError, RequestError


class ReplicaBroken(PenstockError):
    """A replica did not answer, or not to the end. Until its name is added, the message is a clause that says why."""

    code = "replica_broken"
    http_status = 502
    retryable = True
    retry_after = 1


def broken(name: str, why: str) -> ReplicaBroken:
    """The whole sentence, where `why` is the clause."""
    return ReplicaBroken(f"{name} did not answer to the end: {why}.")


class ProviderFailed(PenstockError):
    """A provider cannot answer any request, for what is wrong there or with the operator's account."""

    code = "provider_failed"
    http_status = 502


class ProviderRefused(RequestError):
    """A provider does not take the request, and says that this is the request's own fault."""

    code = "provider_refused"


class ProviderUnavailable(Overloaded):
    """A provider has too much to do, or what may be asked of it in a time is used up."""

    code = "provider_unavailable"


class JoinRefused(RequestError):
    """A server may not be a replica of this gateway."""

    code = "join_refused"
    http_status = 403


class ContentRefused(RequestError):
    """A guardrail lets a request, or its answer, not pass."""

    code = "content_refused"


class GuardrailUnavailable(PenstockError):
    """A guardrail that has to look at a request, or at its answer, does not."""

    code = "guardrail_unavailable"
    http_status = 503
    retryable = True
    retry_after = 1


class NoReplica(Overloaded):
    """No replica can take the request now."""

    code = "no_replica"
