"""Whom a kubeconfig's user acts as: the fields `as`, `as-uid`, `as-groups` and `as-user-extra`.

The library that logs in leaves them out, so requests would have more rights than the file says. The headers
are those of https://kubernetes.io/docs/reference/access-authn-authz/authentication/#user-impersonation.
"""

from collections.abc import Iterator
from urllib.parse import quote

import msgspec
from kubernetes.aio.config.kube_config import KUBE_CONFIG_DEFAULT_LOCATION, KubeConfigMerger

from stele.errors import BadInput

Headers = tuple[tuple[str, str], ...]


class ActingUser(msgspec.Struct, rename="kebab"):
    """The fields of a kubeconfig's user that say whom it acts as."""

    name: str = msgspec.field(name="as", default="")
    as_uid: str = ""
    as_groups: list[str] = []
    as_user_extra: dict[str, list[str]] = {}


def impersonation(kubeconfig: str | None, user: str) -> Headers:
    """Return the headers for a user of a kubeconfig that was read before; None is the one that kubectl takes.

    Raises BadInput for values that are no headers, and for others without `as`, which the API server refuses;
    msgspec.ValidationError for fields of another type.
    """
    merged = KubeConfigMerger(kubeconfig or KUBE_CONFIG_DEFAULT_LOCATION)  # type: ignore[no-untyped-call]
    found = merged.config["users"].get_with_name(user, safe=True)
    if found is None or not found.value.get("user"):
        return ()
    acting = msgspec.convert(found.value["user"], ActingUser)
    headers = tuple(_headers(acting))
    where = f"user {user} of the kubeconfig"
    for name, value in headers:
        if not value.isprintable():
            raise BadInput(f"{where}: {name} would be {value!r}, expected printable characters")
    if headers and not acting.name:
        raise BadInput(f"{where} has as-uid, as-groups or as-user-extra, expected `as` beside them: add it")
    return headers


def _headers(acting: ActingUser) -> Iterator[tuple[str, str]]:
    for name, value in ("Impersonate-User", acting.name), ("Impersonate-Uid", acting.as_uid):
        if value:
            yield name, value
    for group in acting.as_groups:
        yield "Impersonate-Group", group
    for key, values in acting.as_user_extra.items():
        for value in values:
            yield f"Impersonate-Extra-{quote(key.lower(), safe='')}", value
