"""The Secrets of one cluster as they were last read: each is read again only now and then."""

from stele.adapters.kubernetes.api import NotFound
from stele.adapters.kubernetes.secret_store import Content, Mark, SecretStore, StoredSecret
from stele.errors import Conflict

LOOK_SECONDS = 300.0
"""Seconds until a Secret is read again, in case others changed or deleted it."""

REQUESTS_PER_ROUND_MAX = 16
"""Reads and writes of members' Secrets in one round, so that they delay no heartbeat."""


class KeptSecrets:
    """Reads and writes Secrets by compare-and-set. All raise as the store does; times are Unix seconds."""

    def __init__(self, store: SecretStore) -> None:
        self._store = store
        self._known: dict[str, tuple[StoredSecret, float]] = {}
        self._left = 0

    async def read_of_anybody(self, name: str) -> StoredSecret | None:
        """Return the Secret as it is now, ours or not."""
        return await self._store.read_of_anybody(name)

    def begin_round(self) -> None:
        self._left = REQUESTS_PER_ROUND_MAX

    def may_ask(self) -> bool:
        """Return whether this round may send one more request, and count it."""
        self._left -= 1
        return self._left >= 0

    def knows(self, name: str) -> bool:
        return name in self._known

    async def read(
        self, name: str, mark: Mark, now: float, look_seconds: float = LOOK_SECONDS
    ) -> StoredSecret | None:
        """Return the Secret as known, or as it is when it was not looked at for so long.

        One that has not changed is the same object.
        """
        known = self._known.get(name)
        if known is not None and (now - known[1] < look_seconds or not self.may_ask()):
            return known[0]
        found = await self._store.read(name, mark)
        if found is None:
            self._known.pop(name, None)
            return None
        same = known is not None and known[0].stored["metadata"] == found.stored["metadata"]
        return self._note(known[0] if known is not None and same else found, now)

    async def keep(self, name: str, content: Content, mark: Mark, now: float) -> StoredSecret:
        """Return the Secret with this content, which is written unless it has it.

        One that another process has made meanwhile is returned as that made it.
        """
        found = await self.read(name, mark, now)
        if found is None:
            return self._note(await self._store.create(name, content, mark), now)
        if found.says(content):
            return found
        try:
            return self._note(await self._store.replace(found, content, mark), now)
        except (Conflict, NotFound):
            del self._known[name]
            raise

    def _note(self, secret: StoredSecret, now: float) -> StoredSecret:
        self._known[secret.name] = (secret, now)
        return secret
