"""Formats that builds speak, and what each one brought (docs/internals/formats.md).

A format is one number for everything that builds exchange or store: messages between members, exchanges,
ConfigMaps, files and log records. A build speaks a range of formats. The *features* of a cluster are the
format in force (its cluster version): what a later format brought is neither sent nor written.
"""

from typing import NamedTuple

FIRST = 1
"""The format of release 0.1.0, which states no range."""

RANGES = 2
"""Greetings and replies state ranges; the head ConfigMap and the table file of a member hold the features."""

SWAPS = 2
"""An owner hands over to a backup of its row (SWAP), which services are told of, too."""

EVENTS = 2
"""Members send each other what clients publish, and what happens to entries."""

BACKUP_READS = 2
"""A backup asks the owner for its commit index, so that it can answer reads."""

KEYSPACES = 2
"""The master publishes a catalog of keyspaces, which members keep in the table file."""

CLEARS = 2
"""A record of the log deletes all entries of a keyspace in a partition (FLUSHDB)."""

GROUPS = 2
"""The table has groups of partitions, which the head, the table file of a member and exchanges name."""

TRACKING = 2
"""Owners remember which members' clients cache a key, and send them invalidations."""

TRANSACTIONS = 2
"""Owners prepare and end transactions across partitions, and keep intents and outcomes in their logs."""

INVALIDATION_MODE = 2
"""Members have keys of keyspaces with mode Invalidation dropped; a lease says which list its granter has."""

MEMBER_TLS = 2
"""The head names the level of TLS among members."""

LOG_SEGMENTS = 2
"""Members keep their logs in segments, not in RocksDB."""


class FormatRange(NamedTuple):
    """The formats that a build speaks, both ends included."""

    least: int
    most: int

    def speaks(self, number: int) -> bool:
        return self.least <= number <= self.most

    def common(self, other: "FormatRange") -> int | None:
        """Return the format of two builds' conversation, the lower `most`; None if the ranges do not meet."""
        number = min(self.most, other.most)
        return number if number >= max(self.least, other.least) else None

    def __str__(self) -> str:
        return f"format {self.most}" if self.least == self.most else f"formats {self.least} to {self.most}"


SPOKEN = FormatRange(FIRST, RANGES)
"""What this build speaks."""

UNSTATED = FormatRange(FIRST, FIRST)
"""What a build speaks that states no range."""
