"""What the copier and a driver process say to each other: JSON, one object per line, on pipes of their own.

Never the driver's standard output: the JVM's log lines mix with what is printed there.
"""

import msgspec

from stele.wire.copy.jobs import CopyJob


class Start(msgspec.Struct, frozen=True, tag="start"):
    """First to the driver: make this Spark application. `executor_seconds` 0: it needs no executors."""

    conf: dict[str, str]
    staging: str
    callback: str
    slots: int
    executor_seconds: float


class Copy(msgspec.Struct, frozen=True, tag="copy"):
    """To the driver: run this job. `ticket` is the run's number: after DELETE a session may run again."""

    ticket: int
    job: CopyJob


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """To the driver: stop this run's tasks."""

    ticket: int


class Up(msgspec.Struct, frozen=True, tag="up"):
    """From the driver: the application runs."""

    application: str


class Began(msgspec.Struct, frozen=True, tag="began"):
    """From the driver: this run has an executor."""

    ticket: int


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """From the driver: a run ended, well when `code` is empty. Ticket 0: there is no application."""

    ticket: int
    code: str = ""
    text: str = ""
    copied_bytes: int = 0
    entries: int = 0
    finished: tuple[int, ...] = ()
    tasks: int = 0
    retries: int = 0


class SliceProgress(msgspec.Struct, frozen=True):
    """From a task, over HTTP: how far one slice of a job is, of how many, and what it began again so far."""

    part: int
    copied_bytes: int = 0
    entries: int = 0
    finished: tuple[int, ...] = ()
    parts: int = 0
    retries: int = 0


class SliceResult(msgspec.Struct, frozen=True):
    """What a task returns through Spark: its totals, or why trying again makes no sense."""

    copied_bytes: int = 0
    entries: int = 0
    finished: tuple[int, ...] = ()
    code: str = ""
    text: str = ""
    retries: int = 0


encode = msgspec.json.Encoder().encode
decode_order = msgspec.json.Decoder(Start | Copy | Cancel).decode
decode_news = msgspec.json.Decoder(Up | Began | Ended).decode
decode_slice = msgspec.json.Decoder(SliceProgress).decode
decode_result = msgspec.json.Decoder(SliceResult).decode
