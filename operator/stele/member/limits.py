"""Limits of the member process; each with its unit in the name and the reason beside it."""

ENGINE_WRITE_BYTES_MAX = 1024 * 1024
"""One call of the engine: it holds Python's lock meanwhile (64 MB took 150-360 ms)."""

WAIT_SECONDS_MAX = 15.0
"""How long a request waits for an owner, a hand-over or an acknowledgement before it fails."""

PENDING_BYTES_MAX = 64 * 1024 * 1024
"""Operations of clients that are appended and not yet committed; above it new requests wait."""

QUEUE_REQUESTS_MAX = 100_000
QUEUE_BYTES_MAX = 256 * 1024 * 1024
"""Requests that wait for their partition, in all, and their bytes; above it new ones fail at once."""

REPLY_BYTES = 512 * 1024
"""An owner answers of one request so much, or one longer reply; the commands behind it are asked again."""

FIRST_REPLIES_BYTES = 16 * 1024 * 1024
"""The room for replies that a RESP server gives in all to the partitions that it asks at once."""

REQUEST_REPLY_BYTES_MAX = 64 * 1024 * 1024
"""A longer reply is refused: that of an MGET."""

REPLIES_BYTES_MAX = 512 * 1024 * 1024
LARGE_REPLIES_BYTES_MAX = 256 * 1024 * 1024
"""Replies to clients that a member holds. Above the second, what asks with room for any reply waits; the
connection that comes above the first is closed.
"""

HELD_REPLIES_BYTES_MAX = 64 * 1024 * 1024
"""Replies of an owner that wait for a commit or a lease; above it new requests wait before they run."""

REQUEST_OVERHEAD_BYTES = 1024
"""What Python takes for a request that waits for its partition, beside its arguments."""

FORWARDS_WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Requests of one other member that wait while it does not read answers; above it new ones fail."""

TURN_ENTRIES_MAX = 256
TURN_BYTES_MAX = 1024 * 1024
"""What clients' requests may make one turn of the event loop handle: commands, or entries that SCAN looks at,
and their bytes; or a single command with a longer value or reply.
"""

REQUEST_COMMANDS_MAX = 256
REQUEST_BYTES = 256 * 1024
"""Commands of one request to a partition, and about their bytes; a single command may be longer."""

LOSSES_MAX = 2
"""A request whose owner was lost so often while it was there fails: it may be what ended the owners."""

PEER_WINDOW_BYTES = 16 * 1024 * 1024
PEER_WINDOW_MESSAGES = 256
"""Sent to one member and not yet acknowledged; above it the operations wait in the log."""

APPEND_BYTES = 512 * 1024
"""About how much one Append message carries; a single operation may be larger."""

FETCH_BYTES = 1024 * 1024
"""About how much of a log's tail one answer carries."""

COMMIT_DELAY_SECONDS = 0.01
"""How long a commit index waits for operations to travel with."""

SYNC_INTERVAL_SECONDS = 0.1
"""fsync Interval: the most that a loss of power of all replicas at once can take."""

FLUSH_BYTES = 64 * 1024 * 1024
FLUSH_SECONDS = 30.0
"""Data is flushed after so much was applied, or after so long when anything was."""

LOG_RETAINED_BYTES = 256 * 1024
"""Kept of each partition's log, beyond what is needed, for members that come back."""

GC_ALLOCATIONS = 20_000
"""Objects that Python's collector lets grow before it looks for cycles (8 % of the time at its own 700)."""

LOG_PINNED_BYTES_MAX = 256 * 1024 * 1024
LOG_PINNED_MEMBER_BYTES_MAX = 2 * 1024 * 1024 * 1024
"""Kept of one partition's log, and of all, for copies and destinations alone. Above it the largest go: who
needed them needs a copy again. Writes never wait for a destination that is behind.
"""

TICK_SECONDS = 0.05
RECONNECT_SECONDS_MIN = 0.1
RECONNECT_SECONDS_MAX = 2.0
HELLO_SECONDS_MAX = 5.0
GREETINGS_MAX = 64
"""Connections to the members' port that have not greeted yet; the oldest makes room for another."""

SESSIONS_PER_MEMBER_MAX = 16
"""Open copy sessions at one source."""

SESSION_HELD_BYTES_MAX = 8 * 1024 * 1024 * 1024
"""A session ends when its checkpoint keeps more than this of files that the database does without by now."""

SESSIONS_FREE_BYTES_MIN = 256 * 1024 * 1024
"""With less free disk than this the session that keeps most of such files ends."""

SESSIONS_ENDED_MAX = 64
"""Sessions that ended by themselves and whose reason is kept until they are closed."""

SESSION_WATCH_SECONDS = 1.0
"""Between two looks at the leases of sessions, and at what they hold."""

STAGING_AGE_SECONDS = 600.0
"""A staging folder that no master knows and nobody writes to for so long is swept."""

STAGED_REPORTED_MAX = 256
"""Staging folders that one report names."""

LOAD_AGE_SECONDS = 3600.0
"""Files of a bulk load that no log names are swept when nothing of it was written for so long."""

GC_INTERVAL_SECONDS = 10.0
QUARANTINED_MAX = 4
"""Generations of one tablet that are kept in quarantine."""
NO_SPACE_BYTES = 64 * 1024 * 1024
"""With less free disk than this, writes are refused before RocksDB fails."""

LOG_FREE_BYTES_MIN = 16 * 1024 * 1024
"""With less free disk than this nothing is written to the log, nor sent, acknowledged or applied."""

STALLED_SECONDS_MAX = 20.0
"""A log that takes nothing for so long with room again needs a new start (RocksDB mends itself within 10)."""

BODY_BYTES_MAX = 64 * 1024 * 1024
SCAN_KEYS_MAX = 256
SCAN_BYTES = 512 * 1024
"""One page of SCAN: entries that are looked at, and about the bytes of their keys and values."""

LOST_SECONDS_MAX = 10.0
"""A member that is connected and takes no operations of a tablet for so long is reported as silent too."""

EXPIRY_ENTRIES = 1000
EXPIRY_BYTES = 1024 * 1024
"""Looked at once a second, to find what is expired: entries, and about how many bytes."""

MASTER_SILENT_SECONDS = 5.0
"""A frozen owner that heard of no master for so long asks the destination to refuse the hand-over."""

SILENT_MS_MIN = 500
"""A member that did not answer for this long, and for two heartbeats, is reported."""

DRAIN_SECONDS_MAX = 2.0
DRAIN_LOOK_SECONDS = 0.005
"""How long a member that stops waits for the requests that it took to be answered, and how often it looks."""

STOP_SECONDS_MAX = 10.0
"""How long it then takes to stop services, sync the log and close the database, at most."""

LOCK_SECONDS_MAX = 20.0
LOCK_ASK_SECONDS = 0.1
"""How long a start waits for the process before it to let go of the volume, and how often it looks."""
