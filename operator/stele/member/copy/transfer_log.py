"""Has the transfer process of this pod log at the level of its member."""

import asyncio
from contextlib import suppress

import msgspec

from stele.core.control.member_settings import LogLevel
from stele.errors import Refused, Unavailable
from stele.member.live_settings import LiveSettings
from stele.ports.transfer import Transfer
from stele.wire.urls import LOG_LEVEL

LOOK_SECONDS = 1.0
"""Seconds after which a changed level is in effect there."""


async def keep_log_level(transfer: Transfer, settings: LiveSettings) -> None:
    """Run until cancelled. A level other than INFO is said again and again: the process may restart.

    INFO is said once, because an earlier process of this member may have told another level.
    """
    told: LogLevel | None = None
    while True:
        if (wanted := settings.log_level) != told or wanted != LogLevel.INFO:
            # What it cannot be told now, it is told the next time.
            with suppress(Refused, Unavailable):
                await transfer.call("PUT", LOG_LEVEL, msgspec.json.encode(wanted))
                told = wanted
        await asyncio.sleep(LOOK_SECONDS)
