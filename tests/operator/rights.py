"""Rights of the chart's accounts and roles: verbs by resource, all of them."""

GET = {"get"}
READ = {"get", "list", "watch"}
CHANGE = READ | {"create", "update", "patch", "delete"}
WRITE = {"create", "update", "patch", "delete", "deletecollection"}
UPDATE = {"update", "patch"}
KINDS = tuple(
    f"{kind}.stele.dev"
    for kind in ("tabletclusters", "tabletmembers", "tabletrebalances", "keyspaces", "tabletusers")
)
SCALE = "tabletclusters.stele.dev/scale"
NAMESPACED = {
    **dict.fromkeys(
        (*(f"{kind}{part}" for kind in KINDS for part in ("", "/status", "/finalizers")), SCALE),
        READ | WRITE,
    ),
    **dict.fromkeys(("configmaps", "pods", "services", "persistentvolumeclaims"), CHANGE),
    "poddisruptionbudgets.policy": CHANGE,
    "networkpolicies.networking.k8s.io": {"get", "create", "update", "delete"},
    "controllerrevisions.apps": {"get", "list", "create", "update", "delete"},
    **dict.fromkeys(("events", "events.events.k8s.io"), READ | {"create", "patch"}),
    "serviceaccounts": {"get"},
}
"""Of the operator in a namespace that it watches: nothing about Secrets, and no right to give rights."""
CLUSTER = {
    "customresourcedefinitions.apiextensions.k8s.io": READ,
    "namespaces": READ,
    "nodes": {"get", "list"},
}
OF_SECRETS = {"secrets": {"get", "create", "update", "delete"}}
LEASES = {"leases.coordination.k8s.io": CHANGE - {"delete"}}
SPARK = {"pods": CHANGE - {"update"} | {"deletecollection"}}
OPERATOR = NAMESPACED | CLUSTER | OF_SECRETS | LEASES
"""Of the operator of one namespace, which is its own."""
VIEW = {
    **dict.fromkeys(KINDS, READ),
    **dict.fromkeys((*(f"{kind}/status" for kind in KINDS), SCALE), GET),
}
EDIT = {
    **dict.fromkeys((kind for kind in KINDS if kind != "tabletmembers.stele.dev"), WRITE),
    **dict.fromkeys((SCALE, "tabletmembers.stele.dev"), UPDATE),
}
DATA_ADMIN = {
    "secrets [demo-admin-tls]": {"get"},
    "pods/portforward": {"get", "create"},
    **dict.fromkeys(("tabletclusters.stele.dev", "tabletmembers.stele.dev"), GET),
}
