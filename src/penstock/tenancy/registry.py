"""Makes and changes organisations, projects and keys; each change is one transaction, with its record."""

import contextlib
import hashlib
import re
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, and_, func, insert, or_, select, update

from penstock.access.keys import new_key
from penstock.core.errors import InvalidParameter
from penstock.database.connection import Database
from penstock.database.tables import audit, keys, ledger, organisations, projects, state
from penstock.tenancy.errors import AlreadyThere, NotThere
from penstock.tenancy.records import (
    ROLES,
    ApiKey,
    AuditEntry,
    Changes,
    ListedKey,
    Organisation,
    Project,
    Role,
    SetSplit,
)
from penstock.tenancy.settings import Settings

# Characters of a key that are shown: its fixed beginning, and enough to tell it from others.
_SHOWN = len("penstock-") + 6
_MOST_SECONDS = 10 * 366 * 86400
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,30}")
# A split's row of `state` has the revision with which it was set, and behind it its size in thousandths of a percent.
_SPLIT, _PART_BITS, _HUNDRED, _THOUSAND = "split/", 20, 100, 1000
_settings = msgspec.json.Decoder(Settings)


class Registry:
    """All tenants, as the database has them. It may be used by any thread, and waits for the database."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database, self._clock = database, clock

    @contextlib.contextmanager
    def _changing(self) -> Iterator[tuple[Connection, int]]:
        """A transaction that changes something, and its revision; others wait until it is done."""
        with self._database.begin() as connection:
            raised = update(state).where(state.c.name == "revision").values(value=state.c.value + 1)
            yield connection, int(connection.execute(raised.returning(state.c.value)).scalar_one())

    def create_organisation(self, actor: str, name: str, settings: Settings) -> Organisation:
        """A new organisation. Raises InvalidParameter, AlreadyThere."""
        _check_name("name", name)
        made = Organisation(name=name, settings=settings.check(), created_at=self._clock())
        with self._changing() as (connection, revision):
            if _row(connection, organisations, name) is not None:
                raise AlreadyThere(f"There is an organisation {name} already; choose another name.")
            row = {"name": name, "settings": _text(settings), "created_at": made.created_at}
            connection.execute(insert(organisations).values(**row, revision=revision))
            self._note(connection, actor, "organisation.create", name, settings)
        return made

    def create_project(self, actor: str, name: str, settings: Settings) -> Project:
        """A new project ORGANISATION.NAME. Raises InvalidParameter, NotThere, AlreadyThere."""
        organisation, dot, own = name.partition(".")
        if not dot:
            raise InvalidParameter("name", f"is {name[:80]!r}; a project is named ORGANISATION.PROJECT.")
        _check_name("name", own)
        made = Project(
            name=name, organisation=organisation, settings=settings.check(of_project=True), created_at=self._clock()
        )
        with self._changing() as (connection, revision):
            self._open_organisation(connection, organisation)
            if _row(connection, projects, name) is not None:
                raise AlreadyThere(f"There is a project {name} already; choose another name.")
            row = {"name": name, "organisation": organisation, "settings": _text(settings)}
            connection.execute(insert(projects).values(**row, created_at=made.created_at, revision=revision))
            self._note(connection, actor, "project.create", name, settings)
        return made

    def create_key(
        self,
        actor: str,
        name: str,
        project: str | None,
        settings: Settings | None = None,
        *,
        role: Role = "member",
        seconds: float | None = None,
    ) -> tuple[ApiKey, str]:
        """A new key of a project, or without one of an administrator, and the key itself, which is kept nowhere.

        Args:
            seconds: after which it expires; None: never.

        Raises InvalidParameter, NotThere.
        """
        _check_name("name", name)
        if role not in ROLES:
            raise InvalidParameter("role", f"is {role[:80]!r}; there are {', '.join(ROLES)}.")
        if (project is None) == (role == "member"):
            raise InvalidParameter("project", "is needed by keys that ask models, and by no others.")
        settings = (settings or Settings()).check()
        if role != "member" and settings != Settings():
            raise InvalidParameter("settings", "are of keys that ask models; an administrator's has none.")
        now = self._clock()
        key, secret = _new(name, project, role, settings, now, _expiry(now, seconds, "expires_in"))
        with self._changing() as (connection, revision):
            if project is not None:
                self._open_project(connection, project)
            self._insert_key(connection, revision, key)
            self._note(connection, actor, "key.create", key.id, _told(key))
        return key, secret

    def rotate_key(self, actor: str, identifier: str, overlap: float) -> tuple[ApiKey, str]:
        """A new key for an old one, which is taken for `overlap` more seconds. Raises NotThere, InvalidParameter."""
        now = self._clock()
        if not 0 <= overlap <= _MOST_SECONDS:
            raise InvalidParameter("overlap", f"is {overlap:g}; it must be 0 to {_MOST_SECONDS} seconds.")
        with self._changing() as (connection, revision):
            old = self._usable_key(connection, identifier)
            key, secret = _new(old.name, old.project, old.role, old.settings, now, old.expires_at)
            self._insert_key(connection, revision, key)
            ends = now + overlap if old.expires_at is None else min(old.expires_at, now + overlap)
            _change(connection, revision, keys, keys.c.id == identifier, expires_at=ends)
            self._note(connection, actor, "key.rotate", identifier, {"new": key.id, "expires_at": ends})
        return key, secret

    def revoke_key(self, actor: str, identifier: str, *, ends_streams: bool = False) -> ApiKey:
        """Take a key no longer; `ends_streams`: what is under way with it ends, too. Raises NotThere."""
        with self._changing() as (connection, revision):
            key = self._key(connection, identifier)
            at = self._clock() if key.revoked_at is None else key.revoked_at
            ends = ends_streams or key.ends_streams
            _change(connection, revision, keys, keys.c.id == identifier, revoked_at=at, ends_streams=ends)
            self._note(connection, actor, "key.revoke", identifier, {"ends_streams": ends_streams})
            return msgspec.structs.replace(key, revoked_at=at, ends_streams=ends)

    def set_organisation(self, actor: str, name: str, settings: Settings) -> Organisation:
        """Other settings. Raises NotThere, InvalidParameter."""
        with self._changing() as (connection, revision):
            found = self._organisation(connection, name)
            _change(connection, revision, organisations, organisations.c.name == name, settings=_text(settings.check()))
            self._note(connection, actor, "organisation.set", name, settings)
            return msgspec.structs.replace(found, settings=settings)

    def set_project(self, actor: str, name: str, settings: Settings) -> Project:
        """Other settings. Raises NotThere, InvalidParameter."""
        with self._changing() as (connection, revision):
            found = self._project(connection, name)
            text = _text(settings.check(of_project=True))
            _change(connection, revision, projects, projects.c.name == name, settings=text)
            self._note(connection, actor, "project.set", name, settings)
            return msgspec.structs.replace(found, settings=settings)

    def set_key(self, actor: str, identifier: str, settings: Settings) -> ApiKey:
        """Other settings. Raises NotThere, InvalidParameter."""
        with self._changing() as (connection, revision):
            found = self._usable_key(connection, identifier)
            if found.project is None:
                raise InvalidParameter("settings", "are of keys that ask models; an administrator's has none.")
            _change(connection, revision, keys, keys.c.id == identifier, settings=_text(settings.check()))
            self._note(connection, actor, "key.set", identifier, settings)
            return msgspec.structs.replace(found, settings=settings)

    def close(self, actor: str, name: str) -> None:
        """Take no key of an organisation, or of a project, any more; what it has used stays. Raises NotThere."""
        with self._changing() as (connection, revision):
            if "." in name:
                self._project(connection, name)
                _change(connection, revision, projects, projects.c.name == name, closed_at=self._clock())
            else:
                self._organisation(connection, name)
                _change(connection, revision, organisations, organisations.c.name == name, closed_at=self._clock())
            self._note(connection, actor, "project.close" if "." in name else "organisation.close", name, {})

    def owner(self, name: str) -> Organisation | Project:
        """The project of this name where it has a dot, else the organisation. Raises NotThere."""
        return self.project(name) if "." in name else self.organisation(name)

    def organisation(self, name: str) -> Organisation:
        """The organisation of this name. Raises NotThere."""
        with self._database.begin() as connection:
            return self._organisation(connection, name)

    def project(self, name: str) -> Project:
        """The project of this name. Raises NotThere."""
        with self._database.begin() as connection:
            return self._project(connection, name)

    def key(self, identifier: str) -> ApiKey:
        """The key that has this id. Raises NotThere."""
        with self._database.begin() as connection:
            return self._key(connection, identifier)

    def list_keys(
        self, project: str | None = None, search: str = "", after: str | None = None, most: int | None = None
    ) -> list[ListedKey]:
        """Keys, the newest first. Raises NotThere.

        Args:
            project: whose keys are meant; "": those of administrators; None: all.
            search: a part of the name, the id or the shown beginning, in whichever case.
            after: the id of the key behind which the list begins.
            most: that are listed; None: all.
        """
        used = select(func.max(ledger.c.day)).where(ledger.c.key == keys.c.id).scalar_subquery()
        wanted = select(keys, used.label("last_used_on")).order_by(keys.c.created_at.desc(), keys.c.id.desc())
        if project is not None:
            wanted = wanted.where(keys.c.project == project if project else keys.c.project.is_(None))
        if search:
            parts = (each.icontains(search, autoescape=True) for each in (keys.c.name, keys.c.id, keys.c.shown))
            wanted = wanted.where(or_(*parts))
        with self._database.begin() as connection:
            if project:
                self._project(connection, project)
            if after is not None:
                last = self._key(connection, after)
                same = and_(keys.c.created_at == last.created_at, keys.c.id < after)
                wanted = wanted.where(or_(keys.c.created_at < last.created_at, same))
            return [ListedKey(_api_key(row), row.last_used_on) for row in connection.execute(wanted.limit(most))]

    def changes(self, known: int = -1) -> Changes:
        """What has changed since a revision; -1: all there is."""
        with self._database.begin() as connection:
            # Each change takes the number first and keeps it until it is done, so that none below it comes later.
            revision = connection.execute(select(state.c.value).where(state.c.name == "revision")).scalar_one()
            if revision == known:
                return Changes(revision, (), (), ())

            def since(table: Table) -> list[Any]:
                wanted = select(table).where(table.c.revision > known, table.c.revision <= revision)
                return list(connection.execute(wanted.order_by(table.c.revision)))

            return Changes(
                revision,
                [_organisation(row) for row in since(organisations)],
                [_project(row) for row in since(projects)],
                [_api_key(row) for row in since(keys)],
                _splits(connection),
            )

    def set_split(self, actor: str, name: str, percent: float) -> SetSplit:
        """How large a split is from now on, on all gateways; 0 turns it off. Raises InvalidParameter."""
        _check_name("name", name)
        if not 0 <= percent <= _HUNDRED:
            raise InvalidParameter("percent", f"is {percent:g}; it must be from 0 to 100.")
        with self._changing() as (connection, revision):
            of = {"name": f"{_SPLIT}{name}", "value": (revision << _PART_BITS) | round(percent * _THOUSAND)}
            if connection.execute(update(state).where(state.c.name == of["name"]).values(**of)).rowcount == 0:
                connection.execute(insert(state).values(**of))
            self._note(connection, actor, "split.set", name, {"percent": percent})
        return SetSplit(percent, revision)

    def note(self, actor: str, action: str, subject: str, detail: dict[str, Any]) -> None:
        """Record what is no change of tenants, such as refused keys."""
        with self._database.begin() as connection:
            self._note(connection, actor, action, subject, detail)

    def note_once(self, actor: str, action: str, subject: str, detail: dict[str, Any]) -> None:
        """Record what several gateways find, if there is no such record yet."""
        text = msgspec.json.encode(detail).decode()
        same = (audit.c.action == action) & (audit.c.subject == subject) & (audit.c.detail == text)
        with self._changing() as (connection, _):
            if connection.execute(select(audit.c.sequence).where(same).limit(1)).first() is None:
                self._note(connection, actor, action, subject, detail)

    def audit(self, before: int | None, most: int) -> list[AuditEntry]:
        """The newest records, or those before one, the newest first."""
        wanted = select(audit).order_by(audit.c.sequence.desc()).limit(most)
        if before is not None:
            wanted = wanted.where(audit.c.sequence < before)
        with self._database.begin() as connection:
            rows = connection.execute(wanted).mappings().all()
        return [AuditEntry(**{**row, "detail": msgspec.Raw(row["detail"].encode())}) for row in rows]

    def _note(self, connection: Connection, actor: str, action: str, subject: str, detail: object) -> None:
        text = msgspec.json.encode(detail).decode()
        row = {"at": self._clock(), "actor": actor, "action": action, "subject": subject, "detail": text}
        connection.execute(insert(audit).values(**row))

    def _insert_key(self, connection: Connection, revision: int, key: ApiKey) -> None:
        row = msgspec.structs.asdict(key)
        row |= {"sha256": row.pop("digest"), "settings": _text(key.settings), "revision": revision}
        connection.execute(insert(keys).values(**row))

    def _organisation(self, connection: Connection, name: str) -> Organisation:
        row = _row(connection, organisations, name)
        if row is None:
            raise NotThere(f"There is no organisation {name[:80]!r}; `penstock tenant list` has those there are.")
        return _organisation(row)

    def _open_organisation(self, connection: Connection, name: str) -> Organisation:
        found = self._organisation(connection, name)
        if found.closed_at is not None:
            raise InvalidParameter("name", f"The organisation {name} is closed, and takes nothing new.")
        return found

    def _project(self, connection: Connection, name: str) -> Project:
        row = _row(connection, projects, name)
        if row is None:
            raise NotThere(f"There is no project {name[:80]!r}; `penstock tenant list` has those there are.")
        return _project(row)

    def _open_project(self, connection: Connection, name: str) -> Project:
        found = self._project(connection, name)
        if found.closed_at is not None:
            raise InvalidParameter("project", f"The project {name} is closed, and takes nothing new.")
        self._open_organisation(connection, found.organisation)
        return found

    def _key(self, connection: Connection, identifier: str) -> ApiKey:
        row = connection.execute(select(keys).where(keys.c.id == identifier)).one_or_none()
        if row is None:
            raise NotThere(f"There is no key {identifier[:80]!r}; `penstock tenant keys` has those there are.")
        return _api_key(row)

    def _usable_key(self, connection: Connection, identifier: str) -> ApiKey:
        found = self._key(connection, identifier)
        if found.revoked_at is not None:
            raise InvalidParameter("key", f"The key {identifier} was revoked; make a new one.")
        if found.expires_at is not None and found.expires_at <= self._clock():
            raise InvalidParameter("key", f"The key {identifier} has expired; make a new one.")
        return found


def _new(
    name: str, project: str | None, role: Role, settings: Settings, now: float, expires_at: float | None
) -> tuple[ApiKey, str]:
    secret = new_key()
    key = ApiKey(
        id=f"key_{secrets.token_hex(8)}",
        role=role,
        project=project,
        name=name,
        shown=secret[:_SHOWN],
        digest=hashlib.sha256(secret.encode()).digest(),
        settings=settings,
        created_at=now,
        expires_at=expires_at,
    )
    return key, secret


def _expiry(now: float, seconds: float | None, name: str) -> float | None:
    if seconds is None:
        return None
    if not 0 < seconds <= _MOST_SECONDS:
        raise InvalidParameter(name, f"is {seconds:g}; a key lasts more than 0 and at most {_MOST_SECONDS} seconds.")
    return now + seconds


def _change(connection: Connection, revision: int, table: Table, where: Any, **values: Any) -> None:
    connection.execute(update(table).where(where).values(**values, revision=revision))


def _row(connection: Connection, table: Table, name: str) -> Any:
    return connection.execute(select(table).where(table.c.name == name)).one_or_none()


def _organisation(row: Any) -> Organisation:
    settings = _settings.decode(row.settings)
    return Organisation(name=row.name, settings=settings, created_at=row.created_at, closed_at=row.closed_at)


def _project(row: Any) -> Project:
    return Project(
        name=row.name,
        organisation=row.organisation,
        settings=_settings.decode(row.settings),
        created_at=row.created_at,
        closed_at=row.closed_at,
    )


def _api_key(row: Any) -> ApiKey:
    fields = {**row._mapping, "digest": row.sha256, "settings": _settings.decode(row.settings)}
    return ApiKey(**{name: fields[name] for name in ApiKey.__struct_fields__})


def _told(key: ApiKey) -> dict[str, Any]:
    """What the record of a new key says."""
    return {name: getattr(key, name) for name in ("role", "project", "name", "shown", "settings", "expires_at")}


def _text(settings: Settings) -> str:
    return msgspec.json.encode(settings).decode()


def _check_name(param: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidParameter(
            param, f"is {name[:80]!r}; it must have 1 to 31 of A-Z, a-z, 0-9, '_' and '-', the first a letter or digit."
        )


def _splits(connection: Connection) -> dict[str, SetSplit]:
    rows = connection.execute(select(state).where(state.c.name.startswith(_SPLIT)))
    return {
        row.name.removeprefix(_SPLIT): SetSplit(
            (row.value & ((1 << _PART_BITS) - 1)) / _THOUSAND, row.value >> _PART_BITS
        )
        for row in rows
    }
