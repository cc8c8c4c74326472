"""Which replicas with a model of the same name give other results, so that streams do not go on between them."""

import logging
from collections.abc import Sequence

from penstock.gateway.replicas import Replica, Replicas
from penstock.routing.told import ReplicaState

logger = logging.getLogger("penstock.gateway")


class Likeness:
    """What each replica says that its bits follow from."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._identities: dict[int, str] = {}

    def told(self, replica: Replica, state: ReplicaState) -> None:
        """A replica says how it is: it is logged where others with a model of that name give other results."""
        if self._identities.get(replica.place) == state.identity:
            return
        self._identities[replica.place] = state.identity
        other = self.unlike(replica.place, state.models)
        if other is not None:
            logger.warning(
                "%s does not serve %s as %s does: weights apart, they differ in release, configuration, template, "
                "options or processor; streams do not go on between them",
                replica.name,
                state.models[0],
                other,
            )

    def forget(self, place: int) -> None:
        """Leave what a replica has told out of comparisons, since it is gone."""
        self._identities.pop(place, None)

    def unlike(self, place: int, models: Sequence[str]) -> str | None:
        """One whose results may be others than a replica's, although its model has the same name."""
        own = self._identities.get(place)
        for other in self._replicas.there if own else ():
            identity = self._identities.get(other.place)
            if identity and identity != own and set(other.models) & set(models):
                return other.name
        return None
