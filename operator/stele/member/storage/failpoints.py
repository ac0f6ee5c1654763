"""Failpoints let a test kill the process: `STELE_CRASH_POINT=NAME` or `NAME:N` (at the Nth hit, from 1).

A failpoint is hit right after the step that it names, and ends the process as SIGKILL does: data given to the
operating system stays, memory is lost. Without the variable a failpoint costs one comparison.
"""

import os

from stele.errors import BadInput

VARIABLE = "STELE_CRASH_POINT"
EXIT_CODE = 137

POINTS: dict[str, str] = {
    "file.aside": "the new content of a volume's file is on disk under a temporary name",
    "file.renamed": "the file was replaced; the directory is not synced yet",
    "start.instance": "the incarnation was incremented",
    "start.engine": "the database was opened",
    "start.rolled_back": "a COPYING tablet is a tombstone again",
    "start.swept": "data that no superblock names was deleted",
    "create.consensus": "consensus metadata of a new tablet is on disk; its superblock is not",
    "create.superblock": "the superblock of a new, empty tablet is on disk; the table that names it is not",
    "table.saved": "the published table is on disk but not in effect yet",
    "write.logged": "operations were written to the log but not synced",
    "write.synced": "the log was synced; no acknowledgement was sent yet",
    "write.applied": "committed operations were applied; no client was answered yet",
    "write.cleared": "a keyspace was cleared in the data, with the tablet's new state",
    "keyspaces.saved": "the table with another catalog of keyspaces is on disk, which is not in use yet",
    "write.cut": "an uncommitted tail of a log was removed",
    "transaction.prepared": "a participant has prepared; the originator sent nothing further",
    "transaction.decided": "the coordinator has decided; neither the client nor a participant was told",
    "flush.synced": "the log was synced for a flush; the data was not flushed yet",
    "flush.flushed": "the data was flushed; no log was trimmed yet",
    "trim.dropped": "the front of a log was removed",
    "copy.saved": "consensus metadata names the copy to this member",
    "copy.cleared": "consensus metadata no longer names the copy",
    "block.copying": "the superblock says COPYING; the old log is still there",
    "copy.log_cleared": "the old log was removed for a copy",
    "session.checkpointed": "the source has its checkpoint; no description of the session yet",
    "session.written": "the source has the streams of small tablets; no description of the session yet",
    "session.described": "session.json is on disk",
    "session.closing": "session.json was removed; the checkpoint was not",
    "ingest.dropped": "leftovers of an earlier attempt at the copy's generation were deleted",
    "ingest.ingested": "the copied files are in the database; the superblock still says COPYING",
    "load.prepared": "a bulk load's file is ready; the database has not ingested it",
    "load.ingested": "the database has ingested it with the tablet's new state; nothing was reported",
    "block.ready": "the superblock says READY",
    "block.deleted": "the superblock is a tombstone; data and log are still there",
    "quarantine.log_aside": "unapplied operations were saved beside the data, before the log is deleted",
    "quarantine.data_dropped": "expired quarantined data was deleted; its log was not",
    "quarantine.log_dropped": "a tombstone's log was deleted; the superblock still names its data",
    "restore.read": "the log of a tombstone was restored; the superblock was not",
    "promised.saved": "a fence is on disk; nothing was reported",
    "accepted.saved": "an accepted row is on disk; nothing was reported",
    "accepted.cleared": "an accepted row was cleared, because the published row is newer",
    "waited.saved": "the owner's promise that writes wait for a learner is on disk",
    "waited.cleared": "that promise was cleared",
    "frozen.saved": "the owner's freeze for a hand-over is on disk",
    "frozen.cleared": "the freeze was cleared",
    "aside.reason": "the reason for quarantining a volume is on disk; nothing was moved yet",
    "aside.moved": "one more part of a volume was moved to quarantine",
}


class _Armed:
    name = ""
    left = 0


def arm(text: str) -> None:
    """Set the failpoint from the variable's value; empty for none. Raises BadInput with the known names."""
    name, _, number = text.partition(":")
    if text and name not in POINTS:
        raise BadInput(f"{VARIABLE} is {text!r}; it must be one of {', '.join(POINTS)}, or NAME:N")
    if number and (not number.isascii() or not number.isdigit() or not 1 <= int(number) <= 10**9):
        raise BadInput(f"{VARIABLE} is {text!r}; after the colon it must have a number from 1 to 10^9")
    _Armed.name, _Armed.left = name, int(number or 1)


def hit(name: str) -> None:
    """Record that step `name`, a key of POINTS, was just done."""
    if name == _Armed.name:
        _die()


def _die() -> None:
    _Armed.left -= 1
    if _Armed.left <= 0:
        before_death()
        os._exit(EXIT_CODE)


def before_death() -> None:
    """Do nothing; tests replace it to simulate what a loss of power takes from the volume."""
