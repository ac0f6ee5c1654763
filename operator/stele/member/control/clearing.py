"""Clears the keyspaces whose entries the master wants gone (`onDelete: Drop`), in all partitions."""

import logging

from stele.core.control.commands import ClearKeyspaces
from stele.core.kv.keyspaces import name_fault
from stele.errors import BadInput, SteleError
from stele.member.background import Background
from stele.member.resp.flush import flush
from stele.ports.key_value_service import KeyValueService

log = logging.getLogger("stele.clearing")


class KeyspaceClearer:
    """One clearing at a time. `cleared` is the catalog's version of the last one that was completed.

    An owner that has a later catalog refuses, since the keyspaces may be in use again.
    """

    def __init__(self, store: KeyValueService, background: Background) -> None:
        self._store, self._background = store, background
        self._running = False
        self.cleared = 0

    def on_exchange(self, wanted: ClearKeyspaces | None) -> None:
        """Begin, unless it is under way or completed; after a failure the next exchange begins again.

        Raises BadInput for a name that clients cannot select.
        """
        if wanted is None or self._running or wanted.catalog == self.cleared:
            return
        if fault := next(filter(None, map(name_fault, wanted.keyspaces)), None):
            raise BadInput(f"keyspaces to clear: {fault}")
        self._running = True
        self._background.spawn(self._clear(wanted))

    async def _clear(self, wanted: ClearKeyspaces) -> None:
        try:
            for name in wanted.keyspaces:
                group = self._store.group(name.encode())
                await flush(self._store, f"keyspace {name}:", name.encode(), group, wanted.catalog)
            self.cleared = wanted.catalog
        except SteleError as error:
            log.warning("deleted keyspaces are not cleared yet: %s", error)
        finally:
            self._running = False
