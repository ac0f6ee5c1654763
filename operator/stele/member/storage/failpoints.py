"""Failpoints let a test end the process: `STELE_CRASH_POINT=NAME` or `NAME:N` (at the Nth time, from 1).

A point is hit right after the step that it names. The process then ends at once, as by SIGKILL: what the
operating system was given stays, what is in memory is gone. Without the variable a point costs one
comparison.
"""

import os

from stele.errors import BadInput

VARIABLE = "STELE_CRASH_POINT"
EXIT_CODE = 137

POINTS: dict[str, str] = {
    "file.aside": "the new content of a file of the volume is on disk, under another name",
    "file.renamed": "it replaced the old one; the folder is not synced yet",
    "start.instance": "the count of starts was raised",
    "start.engine": "the database was opened",
    "start.rolled_back": "a tablet that was COPYING is a tombstone again",
    "start.swept": "what no superblock names was deleted",
    "create.consensus": "consensus metadata of a new tablet is on disk; its superblock is not",
    "create.superblock": "the superblock of a new, empty tablet is on disk; the table that names it is not",
    "table.saved": "the table that was published is on disk, and not in effect yet",
    "write.logged": "operations were given to the log, and not synced",
    "write.synced": "the log was synced; nobody was told yet",
    "write.applied": "committed operations were applied; nobody was answered yet",
    "write.cut": "an uncommitted tail of a log was removed",
    "flush.synced": "the log was synced for a flush; the data was not flushed yet",
    "flush.flushed": "the data was flushed; no log was trimmed yet",
    "trim.dropped": "the front of a log was removed",
    "copy.saved": "consensus metadata names the copy to this member",
    "copy.cleared": "consensus metadata names it no more",
    "block.copying": "the superblock says COPYING; the old log is still there",
    "copy.log_cleared": "the old log was removed for a copy",
    "session.checkpointed": "the source has its checkpoint; no description of the session yet",
    "session.described": "session.json is on disk",
    "session.closing": "session.json was removed; the checkpoint was not",
    "ingest.dropped": "what an earlier try left under the copy's generation was deleted",
    "ingest.ingested": "the copied files are in the database; the superblock still says COPYING",
    "load.prepared": "all is ready to take a bulk load's file in; the database does not have it",
    "load.ingested": "the database has it, with the tablet's new state; nobody was told",
    "block.ready": "the superblock says READY",
    "block.deleted": "the superblock is a tombstone; data and log are still there",
    "quarantine.log_aside": "what a log has and its data lacks was put beside the data, before the log goes",
    "quarantine.data_dropped": "data that was quarantined long enough was deleted; its log was not",
    "quarantine.log_dropped": "a tombstone's log was deleted; the superblock still names its data",
    "restore.read": "the log of a tombstone that is restored is back; it still is one",
    "promised.saved": "a fence is on disk; nobody was told",
    "accepted.saved": "an accepted row is on disk; nobody was told",
    "accepted.cleared": "it was forgotten: the published row overtook it",
    "waited.saved": "the owner's promise that writes wait for a learner is on disk",
    "waited.cleared": "it was forgotten",
    "frozen.saved": "it is on disk that the owner is frozen for a hand-over",
    "frozen.cleared": "it was forgotten",
    "aside.reason": "why a volume is put aside is on disk; nothing was moved yet",
    "aside.moved": "one more part of a volume was moved to quarantine",
}


class _Armed:
    name = ""
    left = 0


def arm(text: str) -> None:
    """Take the variable's value; empty for none. BadInput names the value and what is known."""
    name, _, number = text.partition(":")
    if text and name not in POINTS:
        raise BadInput(f"{VARIABLE} is {text!r}; it must be one of {', '.join(POINTS)}, or NAME:N")
    if number and (not number.isascii() or not number.isdigit() or not 1 <= int(number) <= 10**9):
        raise BadInput(f"{VARIABLE} is {text!r}; behind the colon must be a number from 1 to 10^9")
    _Armed.name, _Armed.left = name, int(number or 1)


def hit(name: str) -> None:
    """The step `name` (a key of POINTS) was just done."""
    if name == _Armed.name:
        _die()


def _die() -> None:
    _Armed.left -= 1
    if _Armed.left <= 0:
        before_death()
        os._exit(EXIT_CODE)


def before_death() -> None:
    """Replaced by tests that take from the volume what a loss of power would take."""
