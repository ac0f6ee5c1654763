"""Limits of the RESP server that tests change."""

from dataclasses import dataclass

GUEST_ARGUMENTS_MAX = 10
GUEST_ARGUMENT_BYTES_MAX = 16 * 1024
"""Arguments of a request of a client that has to authenticate, and bytes of each, as in Redis."""
GUEST_HELD_BYTES_MAX = 64 * 1024
"""All that such a client has sent and that was not answered."""
GUEST_BEHIND_AUTH_BYTES_MAX = 512 * 1024
"""The same while an AUTH runs: what was sent together with it is judged after it."""
GUEST_OUTPUT_BYTES_MAX = 16 * 1024
"""Replies that such a client has not read; then it gets no more until it reads."""
CUT_SECONDS = 2.0
"""Time that a connection whose rights have ended gets to read its replies."""


@dataclass(frozen=True, slots=True)
class RespServerLimits:
    """Limits of the RESP server. Each causes either back-pressure (no reads) or an error that names it."""

    clients_max: int = 10_000
    guests_max: int = 5_000
    guest_seconds_max: float = 10.0
    pipeline_commands_max: int = 4096
    pipeline_bytes_max: int = 16 * 1024 * 1024
    waiting_bytes_max: int = 512 * 1024 * 1024
    batch_commands_max: int = 512
    output_bytes_high: int = 256 * 1024
    stalled_seconds_max: float = 60.0
    stalled_seconds_max_scarce: float = 5.0
    linger_seconds: float = 0.2
    linger_seconds_max: float = 1.0
    backlog: int = 512
