"""Discovers the services installed beside the member (entry points, `stele.services`)."""

import logging
import re
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from stele.services import GROUP, MigrationAwareService

log = logging.getLogger("stele.services")

SERVICES_MAX = 16
_NAME = re.compile(r"[a-z0-9-]{1,40}")
_METHODS = (
    "start",
    "stop",
    "before_migration",
    "prepare_replication",
    "commit_migration",
    "rollback_migration",
)


def load_services(entries: Iterable[EntryPoint] | None = None) -> dict[str, MigrationAwareService]:
    """Return the services by name, in order. One that cannot be used is logged and skipped.

    The member still serves its tablets: a package that fails to load must not cost a replica.
    """
    services: dict[str, MigrationAwareService] = {}
    for entry in sorted(
        entry_points(group=GROUP) if entries is None else entries, key=lambda each: each.name
    ):
        fault = _name_fault(entry.name, services)
        if not fault:
            try:
                services[entry.name] = _make(entry)
                log.info("service %s: %s", entry.name, entry.value)
                continue
            except Exception as error:  # noqa: BLE001  importing foreign code can raise anything
                fault = f"{type(error).__name__}: {error}"
        log.error("service %s (%s) is disabled: %s", entry.name, entry.value, fault)
    return services


def _name_fault(name: str, services: dict[str, MigrationAwareService]) -> str:
    if not _NAME.fullmatch(name):
        return "its name must be 1 to 40 of a-z, 0-9 and -"
    if name in services:
        return "another installed package has a service of that name"
    if len(services) >= SERVICES_MAX:
        return f"{SERVICES_MAX} services are loaded, which is the limit"
    return ""


def _make(entry: EntryPoint) -> MigrationAwareService:
    service = entry.load()()
    missing = [name for name in _METHODS if not callable(getattr(service, name, None))]
    if missing:
        raise TypeError(f"it has no method {', '.join(missing)}; see MigrationAwareService in stele.services")
    return cast(MigrationAwareService, service)
