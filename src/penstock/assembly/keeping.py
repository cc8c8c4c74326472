"""Where a server keeps files, batches and responses: in a folder of its own, or in a database of several."""

from collections.abc import Sequence

from penstock.access.tenants import Tenant
from penstock.assembly.server_options import ServeOptions
from penstock.batches.stored import NO_STORE
from penstock.core.config import Reason
from penstock.core.errors import ConfigurationError
from penstock.database.connection import database_url
from penstock.storage.directory import choose_folder
from penstock.storage.errors import StorageUnavailable
from penstock.storage.store import Store


def where_kept(options: ServeOptions, model: str) -> Reason:
    """Where a server of `model` keeps things, and why. Raises ConfigurationError."""
    if options.data_dir is None and options.database is not None:
        name = database_url(options.database).render_as_string(hide_password=True)
        return Reason("database", name, "as asked: other servers with it have the same files, batches and responses")
    reason = choose_folder(options.data_dir, model)[1]
    if options.database is not None:
        return Reason(reason.setting, reason.value, f"{reason.why}; --data-dir comes before --database")
    return reason


class Keeping:
    """What a server keeps, until `close`.

    Attributes:
        store: None where nothing is kept; then `why_none` is what clients are told.
        note: what the start says.
    """

    def __init__(self) -> None:
        self.store: Store | None = None
        self.why_none = NO_STORE
        self.note = ""

    def open(self, options: ServeOptions, model: str, tenants: Sequence[Tenant]) -> None:
        """Take a folder or a database.

        Where one was asked for, raises ConfigurationError; otherwise the server goes without.
        """
        self.note = str(where_kept(options, model))
        if options.data_dir is None and options.database is not None:
            self.store = Store.share(options.database, f"model {model}", tenants=tenants)
            return
        folder, _ = choose_folder(options.data_dir, model)
        if folder is None:
            return
        try:
            self.store = Store.open(folder, tenants=tenants)
        except (ConfigurationError, StorageUnavailable) as error:
            if options.data_dir is not None:
                raise
            self.why_none = "This server keeps no files, and so runs no batches; its start said why."
            self.note = f"No files are kept, and there are no batches: {error.message}"

    def close(self) -> None:
        """Let another server have it."""
        if self.store is not None:
            self.store.close()
