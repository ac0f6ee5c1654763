"""Limits of a playground."""

MEMBERS_MAX = 16
"""Members: each is two processes of this machine."""

OBJECTS_MAX = 10_000
"""Objects that are kept, of all kinds."""

CONFIG_MAP_BYTES_MAX = 1 << 20
"""Bytes of the data of one ConfigMap, as in Kubernetes."""

REQUEST_BYTES_MAX = 1 << 20
"""Bytes of the body of one request to the socket."""

SOCKET_PATH_BYTES_MAX = 100
"""Bytes of the path of a Unix socket: what Linux takes (107) and macOS (103)."""

AWAY_SECONDS_MAX = 3600.0
"""Seconds that a killed member may stay away."""

SPARK_DRIVERS_MAX = 2
"""Spark drivers at once: each is a JVM of this machine, with a heap of 512 MiB."""

CLIENTS_MAX = 64
"""Connections of the load."""
