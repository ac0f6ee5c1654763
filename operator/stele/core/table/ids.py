"""Numbers that name things, and the limits that hold for them everywhere."""

PartitionId = int
"""0 .. partitions - 1."""

MemberIndex = int
"""Handed out once per member by the member dictionary, never used again."""

Version = int
"""Counts the changes of one partition; 0 before its first assignment; fits a signed 32-bit number."""

MAX_REPLICAS = 7
"""Replica indexes 0 .. 6; 0 is the owner."""

PARTITIONS_MAX = 65_536
"""Partitions in one table."""

VERSION_MAX = 2**31 - 1
"""Versions are laid out as big-endian int32 when the stamp is computed."""

VERSIONS_RESERVED = 1_000
"""The last versions of a partition are kept for its rescue: above them no migration of it is planned."""

EPOCH_MAX = 2**63 - 1
"""Epochs and versions of the member list are kept as signed 64-bit numbers."""

STEP_MAX = 2**20
"""Epochs, versions and terms grow by a few at a time: one that is further above the known is not believed."""

MEMBERS_MAX = 1_000
"""Members that one table may name."""
