"""The keys of a database, in memory: no request waits for the database to learn who asks."""

import hashlib
import itertools
import time
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from penstock.access.errors import InvalidApiKey
from penstock.access.keys import MAX_KEY_LENGTH
from penstock.access.tenants import Bounds, Level, Tenant, levels_of
from penstock.tenancy.records import ApiKey, Changes, Organisation, Project, Role
from penstock.tenancy.settings import Settings, cached_seconds, permits_of

if TYPE_CHECKING:
    from penstock.tenancy.oidc import Issuer, Subject


class Bounded(NamedTuple):
    """One who has bounds: an organisation, a project or a key, by what it is called.

    Attributes:
        organisation: that it belongs to.
    """

    organisation: str
    name: str
    level: Level


class Directory:
    """What a gateway knows of organisations, projects and keys (it is a `Keys` of `access/keys.py`).

    Attributes:
        revision: of the database, up to which this is what it says.
    """

    def __init__(self, clock: Callable[[], float] = time.time, issuer: "Issuer | None" = None) -> None:
        """`issuer` is the one whose tokens are taken, too."""
        self.revision = -1
        self._issuer = issuer
        self._clock = clock
        self._organisations: dict[str, Organisation] = {}
        self._projects: dict[str, Project] = {}
        self._keys: dict[bytes, ApiKey] = {}
        self._keys_of: dict[str, dict[str, ApiKey]] = {}
        self._by_id: dict[str, ApiKey] = {}
        # Tenants of keys that have asked, and of projects, until something changes.
        self._tenants: dict[bytes, Tenant] = {}

    def __bool__(self) -> bool:
        return True

    def learn(self, changes: Changes) -> list[str]:
        """Take on what has changed; the ids of keys whose requests have to end."""
        self._organisations |= {each.name: each for each in changes.organisations}
        self._projects |= {each.name: each for each in changes.projects}
        self._keys |= {each.digest: each for each in changes.keys}
        for key in changes.keys:
            if key.project is not None:
                self._keys_of.setdefault(key.project, {})[key.id] = key
        self._by_id |= {each.id: each for each in changes.keys}
        self._tenants.clear()
        self.revision = changes.revision
        return [each.id for each in changes.keys if each.revoked_at is not None and each.ends_streams]

    def find(self, secret: bytes) -> Tenant:
        """Whose key this is. Raises InvalidApiKey.

        It is found by its hash: how long that takes says nothing of other keys. Raises ProviderUnavailable for a token
        whose issuer cannot be asked for its keys.
        """
        if (subject := self._subject(secret)) is not None:
            return self._tenant_of(subject)
        key = self._key(secret)
        if key.project is None:
            raise InvalidApiKey("The API key is an administrator's, for /admin/v1; ask models with a project's.")
        tenant = self._tenants.get(key.digest)
        if tenant is None:
            tenant = self._tenants[key.digest] = self._tenant(key, self._projects[key.project])
        return tenant

    def administrator(self, secret: bytes) -> tuple[str, Role]:
        """Whose key or token this is, and what it may administer. Raises InvalidApiKey, ProviderUnavailable."""
        subject = self._subject(secret)
        if subject is None:
            key = self._key(secret)
            return key.id, key.role
        assert self._issuer is not None
        options = self._issuer.options
        roles: dict[Role, tuple[str, ...]] = {"admin": options.admins, "auditor": options.auditors}
        held: list[Role] = [role for role, names in roles.items() if subject.roles & {*names}]
        return f"token/{subject.name}", held[0] if held else "member"

    def _subject(self, secret: bytes) -> "Subject | None":
        """Whom a token is for; None where it is none, or none are taken."""
        if self._issuer is None or secret.count(b".") != 2:
            return None
        return self._issuer.subject(secret)

    def _tenant_of(self, subject: "Subject") -> Tenant:
        if subject.project is None:
            raise InvalidApiKey("The token names no project that it is for.")
        tenant = self.tenant(subject.project)
        if tenant is None:
            raise InvalidApiKey(f"The token is for the project {subject.project[:80]!r}, which is closed or not there.")
        return replace(tenant, key=f"token/{subject.name}")

    def _key(self, secret: bytes) -> ApiKey:
        key = self._keys.get(hashlib.sha256(secret[: MAX_KEY_LENGTH + 1]).digest())
        if key is None:
            raise InvalidApiKey("The API key is none of this server's.")
        if key.revoked_at is not None:
            raise InvalidApiKey(f"The API key {key.shown}… was revoked at {_moment(key.revoked_at)}; use another one.")
        if key.expires_at is not None and key.expires_at <= self._clock():
            raise InvalidApiKey(f"The API key {key.shown}… expired at {_moment(key.expires_at)}; use a new one.")
        if key.project is not None:
            project = self._projects[key.project]
            for kind, owner in (("project", project), ("organisation", self._organisations[project.organisation])):
                if owner.closed_at is not None:
                    raise InvalidApiKey(f"The {kind} {owner.name} of this API key is closed.")
        return key

    def tenant(self, name: str) -> Tenant | None:
        """The tenant of a project, whichever key it asks with; None where there is no such project."""
        project = self._projects.get(name)
        if project is None or project.closed_at is not None:
            return None
        if self._organisations[project.organisation].closed_at is not None:
            return None
        return self._tenant(None, project)

    @property
    def projects(self) -> Collection[str]:
        """The names of all projects."""
        return self._projects.keys()

    def of_batch(self, project: str, key: str) -> Tenant | None:
        """The tenant of a batch's lines, which go on when the batch's key expires, or another one takes its place.

        None where they are not to go on: the project is closed, or the key was revoked with everything under way.
        """
        tenant = self.tenant(project)
        found = self._by_id.get(key)
        if tenant is None or found is None:
            # Those of tokens are not in the database, and have no settings of their own.
            return None if tenant is None else replace(tenant, key=key)
        return None if found.ends_streams else self._tenant(found, self._projects[project])

    def may_ask(self, name: str) -> bool:
        """Whether a tenant of this name can have asked."""
        return name in self._projects

    def budgets(self) -> Iterator[tuple[str, Level]]:
        """All that have a budget, each with its organisation."""
        bounded = itertools.chain(self.bounded_owners(), *(self.bounded_keys(name) for name in self._projects))
        return ((each.organisation, each.level) for each in bounded if each.level.bounds.has_budget)

    def bounded_owners(self, organisation: str | None = None) -> Iterator[Bounded]:
        """Organisations and projects that are open and have bounds; of one organisation, or all."""
        open_ = {each.name for each in self._organisations.values() if each.closed_at is None}
        wanted = open_ if organisation is None else open_ & {organisation}
        for name in sorted(wanted):
            yield from _bounded(name, "organisation", name, name, self._organisations[name].settings)
        for project in self._projects.values():
            if project.organisation in wanted and project.closed_at is None:
                yield from _bounded(project.organisation, "project", project.name, project.name, project.settings)

    def bounded_project(self, name: str) -> Iterator[Bounded]:
        """A project and its keys, where they have bounds."""
        own = self.bounded_owners(name.partition(".")[0])
        return itertools.chain((each for each in own if each.level.owner == f"project/{name}"), self.bounded_keys(name))

    def bounded_keys(self, project: str) -> Iterator[Bounded]:
        """Keys of a project that are taken and have bounds."""
        for key in self._keys_of.get(project, {}).values():
            if key.state(self._clock()) == "usable":
                yield from _bounded(self._projects[project].organisation, "key", key.id, key.name, key.settings)

    def _tenant(self, key: ApiKey | None, project: Project) -> Tenant:
        organisation = self._organisations[project.organisation]
        owners = [
            (f"project/{project.name}", project.settings),
            (f"organisation/{organisation.name}", organisation.settings),
        ]
        if key is not None:
            owners.insert(0, (f"key/{key.id}", key.settings))
        return Tenant(
            name=project.name,
            weight=project.settings.weight or 1.0,
            levels=levels_of((owner, settings.bounds) for owner, settings in owners),
            permits=permits_of([settings for _, settings in owners]),
            answer_cache_seconds=cached_seconds([settings for _, settings in owners]),
            organisation=organisation.name,
            key="" if key is None else key.id,
            max_stored_bytes=project.settings.max_stored_bytes,
        )


def _bounded(organisation: str, kind: str, identifier: str, name: str, settings: Settings) -> Iterator[Bounded]:
    if settings.bounds != Bounds():
        yield Bounded(organisation, name, Level(f"{kind}/{identifier}", settings.bounds))


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
