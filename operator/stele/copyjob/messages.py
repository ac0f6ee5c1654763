"""Messages between the copier and a driver process: one JSON object per line, on separate pipes.

They do not use the driver's standard output, which is mixed with log lines of the JVM.
"""

import msgspec

from stele.wire.copy.jobs import CopyJob


class Start(msgspec.Struct, frozen=True, tag="start"):
    """First message to the driver: create this application. `executor_seconds` is 0 without executors."""

    conf: dict[str, str]
    staging: str
    callback: str
    slots: int
    executor_seconds: float


class Copy(msgspec.Struct, frozen=True, tag="copy"):
    """To the driver: run this job. `ticket` numbers runs, as a session may run again after DELETE."""

    ticket: int
    job: CopyJob


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """To the driver: stop the tasks of this run."""

    ticket: int


class Up(msgspec.Struct, frozen=True, tag="up"):
    """From the driver: the application runs."""

    application: str


class Began(msgspec.Struct, frozen=True, tag="began"):
    """From the driver: this run has an executor."""

    ticket: int


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """From the driver: a run ended, successfully if `code` is empty. Ticket 0: the application failed."""

    ticket: int
    code: str = ""
    text: str = ""
    copied_bytes: int = 0
    entries: int = 0
    finished: tuple[int, ...] = ()
    tasks: int = 0
    retries: int = 0


class SliceProgress(msgspec.Struct, frozen=True):
    """From a task, over HTTP: progress of one of `parts` slices of a job."""

    part: int
    copied_bytes: int = 0
    entries: int = 0
    finished: tuple[int, ...] = ()
    parts: int = 0
    retries: int = 0


class SliceResult(msgspec.Struct, frozen=True):
    """Result of a task through Spark: its totals, or why a retry is pointless."""

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
