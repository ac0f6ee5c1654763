"""Limits of the RESP server that tests change."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RespServerLimits:
    """Limits of the RESP server. Each causes either back-pressure (no reads) or an error that names it."""

    clients_max: int = 10_000
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
