"""Kopf's half of the process: its watches fill the cache and wake the loops, and that is all they do.

`kopf.on.event` writes nothing into objects (no annotations, no finalizers), so deleting a cluster never
waits for us.
"""

import asyncio
from dataclasses import replace
from typing import Any

import kopf

from stele.adapters.kubernetes.api import (
    CLAIMS,
    CLUSTERS,
    KEYSPACES,
    MEMBERS,
    PODS,
    REBALANCES,
    USERS,
    Api,
    Kind,
    NotFound,
)
from stele.adapters.kubernetes.login import Login
from stele.master.cache import Cache
from stele.master.settings import ALL_NAMESPACES
from stele.model.ownership import CLUSTER_LABEL, CLUSTER_UID_LABEL

WATCHED = (CLUSTERS, MEMBERS, REBALANCES, KEYSPACES, USERS, PODS, CLAIMS)

LATER = (KEYSPACES, USERS)
"""Kinds whose definitions an upgrade of the operator may precede."""

LABELS: dict[Kind, tuple[str, ...]] = {PODS: (CLUSTER_LABEL,), CLAIMS: (CLUSTER_LABEL, CLUSTER_UID_LABEL)}
"""Labels of watched objects, for kinds that others create, too: each object of ours has one of them."""

SERVER_SECONDS = 300
CLIENT_SECONDS = 330
CONNECT_SECONDS = 10


def registry_of(cache: Cache, login: Login) -> kopf.OperatorRegistry:
    """Return handlers for all kinds that the loops read."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def log_in(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(
            server=login.server,
            ca_path=login.ca_file,
            insecure=not login.verify,
            scheme="Bearer" if login.token() else None,
            token=login.token(),
            certificate_path=login.certificate_file,
            private_key_path=login.key_file,
        )

    @kopf.on.startup(registry=registry)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.watching.server_timeout = SERVER_SECONDS
        settings.watching.client_timeout = CLIENT_SECONDS
        settings.watching.connect_timeout = CONNECT_SECONDS
        settings.posting = replace(settings.posting, enabled=False)
        settings.scanning.disabled = True
        settings.persistence.finalizer = "stele.dev/kopf"
        settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix="kopf.stele.dev")
        settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix="kopf.stele.dev")

    for kind in WATCHED:
        for label in LABELS.get(kind, ("",)):
            _watch(registry, cache, kind, label)
    return registry


async def listed(api: Api, kind: Kind, namespace: str | None) -> list[dict[str, Any]] | None:
    """Return the present objects of a kind, as far as they are watched.

    Return None for a kind in LATER that the API server does not know: one that has just started may not know
    it yet, so that says nothing about its objects.
    """
    try:
        lists = [await api.list(kind, namespace, label) for label in LABELS.get(kind, ("",))]
    except NotFound:
        if kind not in LATER:
            raise
        return None
    return list({each["metadata"]["uid"]: each for objects in lists for each in objects}.values())


def _watch(registry: kopf.OperatorRegistry, cache: Cache, kind: Kind, label: str) -> None:
    group, _, version = kind.api.rpartition("/")

    async def on_event(event: Any, **_: Any) -> None:
        stored = dict(event["object"])
        if event["type"] == "DELETED":
            cache.remove(kind, stored)
        else:
            cache.put(kind, stored)

    marks = {label: kopf.PRESENT} if label else None
    name = f"seen-{kind.plural}-{label}"
    kopf.on.event(group, version, kind.plural, registry=registry, labels=marks, id=name)(on_event)


async def run(cache: Cache, login: Login, namespaces: tuple[str, ...], ready: asyncio.Event) -> None:
    """Watch until cancelled."""
    await kopf.operator(
        registry=registry_of(cache, login),
        clusterwide=ALL_NAMESPACES in namespaces,
        namespaces=[each for each in namespaces if each != ALL_NAMESPACES],
        standalone=True,
        ready_flag=ready,
    )
