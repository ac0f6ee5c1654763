"""How far a copy is, in the words of those that do it."""

from enum import StrEnum


class CopyState(StrEnum):
    """How far a tablet is that a member receives."""

    STARTED = "STARTED"
    COPYING = "COPYING"
    INGESTED = "INGESTED"
    ACCEPTED = "ACCEPTED"
    FAILED = "FAILED"


class FetchState(StrEnum):
    """How far a copy between two members is."""

    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"


class JobState(StrEnum):
    """How far a job of an engine that copies is."""

    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
