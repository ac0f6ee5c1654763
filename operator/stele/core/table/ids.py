"""Numbers that identify things, and the limits that hold for them everywhere."""

PartitionId = int
"""A partition, 0 to partitions - 1."""

MemberIndex = int
"""A member's entry in the member dictionary; assigned once and never reused."""

Version = int
"""Number of changes of one partition's row; 0 before its first assignment; fits a signed 32-bit integer."""

MAX_REPLICAS = 7
"""Replica indexes are 0 to 6, as in Hazelcast."""

PARTITIONS_MAX = 65_536
"""Most partitions of one table."""

VERSION_MAX = 2**31 - 1
"""Greatest version of a row: the stamp is computed over big-endian int32."""

VERSIONS_RESERVED = 1_000
"""Versions at the end of the range that are reserved for failover: no migration is planned above them."""

EPOCH_MAX = 2**63 - 1
"""Epochs and member-list versions are stored as signed 64-bit integers."""

STEP_MAX = 2**20
"""Greatest credible step: an epoch, version or term that is further above the last known one is rejected."""

MEMBERS_MAX = 1_000
"""Most members that one table may name."""
