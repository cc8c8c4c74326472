"""Whether a request may leave own machines, and to which providers."""

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from penstock.access.errors import NotPermitted
from penstock.access.tenants import OWN, Permits
from penstock.core.errors import RequestError
from penstock.gateway.replicas import Replica, Replicas
from penstock.metering.prices import Price
from penstock.providers.outgoing import Outgoing, outgoing


class Abroad(NamedTuple):
    """A request that may go out.

    Attributes:
        request: as providers get it.
        places: of those that can answer it, in the order in which they are asked.
        only: whether no own machine can.
        prices: of these providers for its model.
    """

    request: Outgoing
    places: tuple[int, ...]
    only: bool
    prices: tuple[Price, ...]


def way_out(replicas: Replicas, model: str, path: str, body: bytes, permits: Permits) -> Abroad | None:
    """How a request for a model can go out; None where it stays on own machines.

    Raises RequestError where it has to go out and cannot, NotPermitted where its tenant does not let it.
    """
    hosting = replicas.hosting(model)
    if not hosting:
        return None
    only = not replicas.may_serve(model)
    allowed = [each for each in hosting if _is_seen_by(permits, each)]
    if not allowed:
        if only:
            raise NotPermitted(
                f"The model {model!r} is answered by a provider only, and requests of this API key stay with "
                f"{_where(permits)}; ask for another model.",
                param="model",
            )
        return None
    try:
        request = outgoing(path, body, model)
        able = _able(allowed, request)
    except RequestError:
        if only:
            raise
        # Own machines can do more, or say in their own words what is wrong.
        return None
    prices = tuple(each.hosted.price(model) for each in able if each.hosted is not None)
    return Abroad(request, tuple(each.place for each in able), only, prices)


def _able(replicas: Sequence[Replica], request: Outgoing) -> list[Replica]:
    """The providers whose APIs can do what a request asks for. Raises what the last one says where none can."""
    able = []
    for replica in replicas:
        with contextlib.suppress(RequestError):
            _check(replica, request)
            able.append(replica)
    if not able:
        _check(replicas[-1], request)
    return able


def _check(replica: Replica, request: Outgoing) -> None:
    assert replica.hosted is not None, "a provider has one"
    replica.hosted.check(request)


def may_have(replicas: Replicas, model: str, permits: Permits) -> bool:
    """Whether a model is that of a machine, or of a provider that may see the request."""
    return replicas.may_serve(model) or any(_is_seen_by(permits, each) for each in replicas.hosting(model))


def _is_seen_by(permits: Permits, replica: Replica) -> bool:
    classes = permits.privacy_classes
    return replica.hosted is not None and (classes is None or replica.hosted.options.privacy in classes)


def _where(permits: Permits) -> str:
    classes = sorted((permits.privacy_classes or frozenset()) - {OWN})
    return f"own machines and providers of the classes {', '.join(classes)}" if classes else "own machines"
