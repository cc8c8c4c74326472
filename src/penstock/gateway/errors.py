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


class JoinRefused(RequestError):
    """A server may not be a replica of this gateway."""

    code = "join_refused"
    http_status = 403


class NoReplica(Overloaded):
    """No replica can take the request now."""

    code = "no_replica"
