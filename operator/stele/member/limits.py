"""Limits of the member process, with units in their names and the reason for each."""

ENGINE_WRITE_BYTES_MAX = 1024 * 1024
"""Bytes of one call of the engine, which holds the GIL (64 MB took 150-360 ms)."""

WAIT_SECONDS_MAX = 15.0
"""Longest wait of a request for an owner, a hand-over or an acknowledgement before it fails."""

STALENESS_SECONDS_MAX = 10.0
"""How long an owner goes on answering reads of an `Available` keyspace after its leases ended.

Without an end, one that is cut off would answer with old values for as long as that lasts.
"""

PENDING_BYTES_MAX = 64 * 1024 * 1024
"""Clients' operations that are appended but not committed; above it new requests wait."""

ASYNC_BYTES_MAX = 32 * 1024 * 1024
ASYNC_PARTITION_BYTES_MAX = 4 * 1024 * 1024
"""Operations of Async keyspaces that are answered but not committed, of a member and of one partition; above
either, such writes are answered when they are committed, like all others."""

ASYNC_OPERATION_BYTES = 512
"""Python's overhead of such an operation, beside its record."""

QUEUE_REQUESTS_MAX = 100_000
QUEUE_BYTES_MAX = 256 * 1024 * 1024
"""Number and bytes of all requests that wait for their partition; above either, new ones fail at once."""

REPLY_BYTES = 512 * 1024
"""Replies of an owner to one request, or a single longer one; its remaining commands are sent again."""

FIRST_REPLIES_BYTES = 16 * 1024 * 1024
"""Room for replies that a RESP server grants in total to partitions it queries concurrently."""

REQUEST_REPLY_BYTES_MAX = 64 * 1024 * 1024
"""Longest reply of one request, such as an MGET; longer ones are refused."""

REPLIES_BYTES_MAX = 512 * 1024 * 1024
LARGE_REPLIES_BYTES_MAX = 256 * 1024 * 1024
"""Replies to clients that a member holds.

Above the second, requests that reserve room for any reply wait; above the first, the connection that exceeds
it is closed.
"""

PUSH_BYTES_MAX = 32 * 1024 * 1024
PUSHES_BYTES_MAX = 256 * 1024 * 1024
"""Messages besides replies that one client, or all clients, have not read.

Above the first the client's connection is closed, as with Redis' client-output-buffer-limit for pubsub; above
the second, the one that holds the most.
"""

EVENT_BYTES = 64 * 1024
"""Operations of a partition that are read in one step for members that listen to its events."""

ENTRIES_MOVED_SECONDS = 0.01
"""Pause between pages of entries that arrived or departed, of SCAN_KEYS_MAX keys each."""

EXPIRED_BYTES_MAX = 4 * 1024 * 1024
"""Keys of expired entries that services have not been informed of; those beyond are not reported."""

DEPARTURES_AFTER_SECONDS = 4.0
"""A member that has started reports departures after this time, in which others connect to it."""

LISTEN_SECONDS_MAX = 2.0
"""How long SUBSCRIBE waits for owners to send events; what they did until then is a gap."""

PUBLISH_QUEUE_BYTES_MAX = 16 * 1024 * 1024
"""Messages of other members' clients that wait for delivery here; above it they are dropped."""

HELD_REPLIES_BYTES_MAX = 64 * 1024 * 1024
"""Replies of an owner that wait for a commit or a lease; above it new requests wait before they run."""

REQUEST_OVERHEAD_BYTES = 1024
"""Python's overhead of a waiting request, beside its arguments."""

FORWARDS_WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Requests of another member that wait while it does not read replies; above it new ones fail."""

PEER_PUSHES_BYTES_MAX = 1024 * 1024
"""Invalidations for another member that wait behind answers which it does not read; above it, its session
ends, and its clients drop what they cache of this member."""

TURN_ENTRIES_MAX = 256
TURN_BYTES_MAX = 1024 * 1024
"""Clients' work in one turn of the event loop: commands, or entries scanned, and their bytes.

A single command with a longer value or reply may exceed it.
"""

REQUEST_COMMANDS_MAX = 256
REQUEST_BYTES = 256 * 1024
"""Commands and approximate bytes of one request to a partition; a single command may be longer."""

REQUEST_WORK_BYTES = 1024 * 1024
"""Bytes of stored values that the commands of one request read and write; the others are sent again.

A short command may work on a long value: APPEND logs all of it. A single one may exceed it.
"""

LOSSES_MAX = 2
"""A request fails after its owner was lost this often, as it may be the cause."""

PEER_WINDOW_BYTES = 16 * 1024 * 1024
PEER_WINDOW_MESSAGES = 256
"""Bytes and messages sent to a member without acknowledgement; above it operations wait in the log."""

APPEND_BYTES = 512 * 1024
"""Approximate size of one Append message; a single operation may be larger."""

FETCH_BYTES = 1024 * 1024
"""Approximate size of one answer with a log's tail."""

COMMIT_DELAY_SECONDS = 0.05
"""How long a commit index waits to be sent with operations."""

APPLY_DELAY_SECONDS = 0.05
APPLY_DELAY_BYTES_MAX = 4 * 1024 * 1024
"""How long committed operations wait at a backup to be applied together, and how many bytes of them."""

SYNC_INTERVAL_SECONDS = 0.1
"""With fsync Interval, the most that a simultaneous loss of power of all replicas can lose."""

FLUSH_BYTES = 64 * 1024 * 1024
FLUSH_SECONDS = 30.0
"""Data is flushed after this many applied bytes, or this long after the first one."""

LOG_RETAINED_BYTES = 256 * 1024
LOG_RETAINED_BYTES_ALL = 128 * 1024 * 1024
"""Bytes kept of each partition's log beyond what is needed, for members that return, and of all logs.

Above that each keeps as much less: a start reads all of it, and the places of its operations are in memory.
"""

LOG_SPACE_BYTES = 2 * 1024 * 1024 * 1024
"""Bytes kept of all logs only for copies and destinations, until a master says otherwise.

Above it, or half of it of one log, the largest are released, and their copies have to start over. Writes
never wait for a destination that is behind.
"""

ADOPTION_SECONDS_MAX = 1.0
"""Seconds, and a third of a lease at most, until an exchange is answered that is still being adopted.

A master takes a member for lost after a lease and a heartbeat without an answer.
"""

ROWS_PER_PART = 256
"""Rows that a member adopts, or tablets that it creates, before it handles other events.

An exchange may bring tens of thousands, and leases and answers to the master would wait for seconds.
"""

TICK_SECONDS = 0.05
RECONNECT_SECONDS_MIN = 0.1
RECONNECT_SECONDS_MAX = 2.0
HELLO_SECONDS_MAX = 5.0
GREETINGS_MAX = 64
"""Connections to the peer port without a greeting; a new one replaces the oldest."""

PEER_WAITING_MAX = 1000
PEER_HANDSHAKES_MAX = 256
"""Connections to the peer port, and to the admin port, that have not begun their handshake, or not ended it;
beyond either the oldest one is closed."""

AUDIT_LINES_PER_SECOND_MAX = 100
AUDIT_READS_PER_SECOND_MAX = 10
AUDIT_REFUSED_SECONDS = 1.0
AUDIT_TARGET_CHARACTERS_MAX = 500
"""Lines about changes that somebody asks for, and about reads of data; time between two lines about refused
requests; of the path in them."""

CERTIFICATE_LOOK_SECONDS = 10.0
"""Interval of checks whether the files of the certificate have changed."""

RENEW_LOOK_SECONDS = 0.5
RENEW_PAUSE_SECONDS = 10.0
RENEW_ALL_SECONDS = 1800.0
"""Links are renewed where TLS is new, or a CA is no longer trusted: the interval of checks; the pause between
two with another CA, and how long all may take, for which the pause is shorter."""

RENEW_HOLD_SECONDS_MIN = 0.2
RENEW_HOLD_SECONDS_MAX = 1.0
RENEW_REST_RATIO = 20
"""How long a link that is renewed holds traffic back until what was sent is answered, before it goes on as it
is: twice as long at each attempt, and so many times that are between two."""

RENEW_ANSWER_SECONDS_MAX = 1.0
"""How long the other side may take to answer the greeting; then the session before ends."""

RENEW_HELD_BYTES_MAX = 4 * 1024 * 1024
"""What waits on a link meanwhile; above it published messages are dropped."""

OUTDATED_SECONDS_MAX = 3600.0
"""A session ends this long after the CA of one of its certificates is no longer trusted."""

SESSIONS_PER_MEMBER_MAX = 16
"""Open copy sessions at one source."""

SESSION_STREAMS_BYTES_MAX = 32 * 1024 * 1024
SESSION_STREAMS_ENTRIES_MAX = 65_536
"""Bytes and entries of all tablets of a session whose streams are written when it opens, instead of a
checkpoint."""

SNAPSHOT_SPACE_BYTES = 8 * 1024 * 1024 * 1024
"""A session ends when its checkpoint keeps more than this of files that the database no longer needs, until a
master says otherwise."""

SESSIONS_FREE_BYTES_MIN = 256 * 1024 * 1024
"""With less free disk space than this, the session that keeps most of such files ends."""

SESSIONS_ENDED_MAX = 64
"""Sessions that ended by themselves and whose reason is kept until they are closed."""

SESSION_WATCH_SECONDS = 1.0
"""Interval of checks of sessions' leases and of what they hold."""

TAKE_OVER_LEASE_SECONDS = 60.0
"""Time that a session stays open after each exchange of a master that takes over."""

STAGING_AGE_SECONDS = 600.0
"""Age without writes at which a staging directory that no master knows is deleted."""

STAGED_REPORTED_MAX = 256
"""Staging directories that one report names."""

LOAD_AGE_SECONDS = 3600.0
"""Age without writes at which files of a bulk load that no log names are deleted."""

GC_INTERVAL_SECONDS = 10.0
QUARANTINED_MAX = 4
"""Generations of one tablet that are kept in quarantine."""
NO_SPACE_BYTES = 64 * 1024 * 1024
"""With less free disk space than this, writes are refused before RocksDB fails."""

LOG_FREE_BYTES_MIN = 16 * 1024 * 1024
"""With less free disk space than this, nothing is logged, sent, acknowledged or applied."""

PLENTY_BYTES = 1024 * 1024 * 1024
"""With more free disk space than this, it is measured at every tick and not at every write of the log."""

STALLED_SECONDS_MAX = 20.0
"""How long a log may fail despite free space before the process restarts; RocksDB recovers within 10 s."""

BODY_BYTES_MAX = 64 * 1024 * 1024
SCAN_KEYS_MAX = 256
SCAN_BYTES = 512 * 1024
"""One page of SCAN: entries scanned, and approximate bytes of keys and values."""

LOST_SECONDS_MAX = 10.0
"""A connected member that accepts no operations of a tablet for this long is reported as silent too."""

EXPIRY_ENTRIES = 1000
EXPIRY_BYTES = 1024 * 1024
"""Entries, and approximate bytes, that are checked for expiry once a second."""

MASTER_SILENT_SECONDS = 5.0
"""A frozen owner without contact to a master for this long asks the destination to cancel the hand-over."""

SILENT_MS_MIN = 500
"""A member that has not answered for this long, and for two heartbeats, is reported."""

STOPPING_SECONDS_MAX = 3600.0
"""Longest time for which a planned stop is announced."""

MASTER_AWAY_SECONDS_MAX = 30.0
"""How long a planned stop waits for an exchange: an operator evicted at the same time starts elsewhere, and
its Lease lasts 15 s if it died."""

LEAVE_SECONDS_MIN = 3.0
LEAVE_LOOK_SECONDS = 0.2
LEAVE_ANSWER_SECONDS_MAX = 5.0
"""Of `stele-member leave`: its least duration, in which nodes stop sending new connections here; the interval
of its requests; and how long it waits for one answer."""

DRAIN_SECONDS_MAX = 2.0
DRAIN_LOOK_SECONDS = 0.005
"""How long a stopping member waits for replies to its clients, and again for those to other members; the
interval of checks."""

STOP_SECONDS_MAX = 10.0
"""Most time for stopping services, syncing the log and closing the database after that."""

LOCK_SECONDS_MAX = 20.0
LOCK_ASK_SECONDS = 0.1
"""How long a start waits for the previous process to release the volume, and the interval of checks."""
