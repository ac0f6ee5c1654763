"""The log of a process: its format, the least level of its lines, and what each of them is about.

Levels are of the loggers of Stele; the log of others stays at the level with which the process began.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType, TracebackType

from stele.adapters.environment import setting
from stele.adapters.json_lines import JsonFormatter
from stele.core.control.member_settings import LogLevel

log = logging.getLogger("stele.process")

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
ERROR_CHARACTERS_MAX = 500
"""Characters of the error in the last line of a process."""


class LogFormat(StrEnum):
    """Text is for people, JSON for programs: one object on each line."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True)
class LogSettings:
    """How a process logs; lines of JSON name the cluster and the member that it belongs to."""

    format: LogFormat = setting("STELE_LOG_FORMAT", "of the log", default=LogFormat.TEXT)
    level: LogLevel = setting("STELE_LOG_LEVEL", "least severity that is logged", default=LogLevel.INFO)
    namespace: str = setting("STELE_LOG_NAMESPACE", "that lines of JSON name", default="")
    cluster: str = setting("STELE_LOG_CLUSTER", "that lines of JSON name", default="")
    member: str = setting("STELE_LOG_MEMBER", "that lines of JSON name", default="")


def environment_of(log_format: LogFormat | str, namespace: str, cluster: str) -> dict[str, str]:
    """Return the variables that have a process of a cluster's pod log so."""
    return {
        "STELE_LOG_FORMAT": str(log_format),
        "STELE_LOG_NAMESPACE": namespace,
        "STELE_LOG_CLUSTER": cluster,
    }


@dataclass
class _Log:
    """What `logging` does not know of the log of this process. `clusters` have levels of their own."""

    settings: LogSettings = LogSettings()
    epoch: Callable[[], int] = int
    clusters: dict[tuple[str, str], int] = field(default_factory=dict)


_log = _Log()
_about: ContextVar[Mapping[str, str | int]] = ContextVar("about", default=MappingProxyType({}))


def fields_now() -> dict[str, str | int]:
    """Return what lines are about now, beside what they name themselves."""
    own = _log.settings
    names = {"namespace": own.namespace, "cluster": own.cluster, "member": own.member}
    fixed: dict[str, str | int] = {**names, "epoch": _log.epoch()}
    return {**_about.get(), **{name: value for name, value in fixed.items() if value}}


def admits(record: logging.LogRecord) -> bool:
    """Return whether a line is logged, where clusters have levels of their own."""
    if not _log.clusters:
        return True
    now = _about.get()
    key = str(now.get("namespace")), str(now.get("cluster"))
    return record.levelno >= _log.clusters.get(key, _number(_log.settings.level))


def start(settings: LogSettings, handler: logging.Handler | None = None) -> None:
    """Log to standard error, or to the `handler`, from now on. Warnings of Python, and the error that ends
    the process, are lines of the log, too, where those are JSON."""
    _log.settings = settings
    handler = handler or logging.StreamHandler()
    handler.addFilter(admits)
    handler.setFormatter(logging.Formatter(TEXT_FORMAT))
    if settings.format is LogFormat.JSON:
        handler.setFormatter(JsonFormatter(fields_now))
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
    logging.basicConfig(level=settings.level.value, handlers=[handler])


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
    else:
        log.error("unexpected %s", kind.__name__, exc_info=(kind, error, traceback))
        # A line of its own: Kubernetes keeps the last 2 KiB, which a traceback may fill.
        log.critical("ending: unexpected %s: %s", kind.__name__, str(error)[:ERROR_CHARACTERS_MAX])


def fail(program: str, why: object) -> None:
    """Say why a program ends: as the last line of its log, or for people on standard error."""
    if _log.settings.format is LogFormat.JSON:
        log.critical("%s", why)
    else:
        print(f"{program}: {why}", file=sys.stderr)


def about_nothing() -> Context:
    """Return the context of work that outlives what has it begun, and is about other things by then."""
    return Context()


@contextmanager
def about(**fields: str | int) -> Iterator[None]:
    """Have lines name these fields: those of this block, and of tasks that begin in it."""
    token = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        # What is given up is closed in another context, which is about something else.
        with suppress(ValueError):
            _about.reset(token)


def note(**fields: str | int) -> None:
    """Have lines of this task name these fields from now on."""
    _about.set({**_about.get(), **fields})


def name_epoch(epoch: Callable[[], int]) -> None:
    """Have each line of the process name the epoch of the master, once there is one."""
    _log.epoch = epoch


def follow(level: LogLevel) -> None:
    """Change the level of a process that belongs to one cluster."""
    logging.getLogger("stele").setLevel(level.value)


def follow_cluster(namespace: str, cluster: str, level: LogLevel | None) -> None:
    """Change the level of the lines about a cluster, in a process that has many.

    With INFO, the default of its spec, or None, the cluster is gone, it is that of the process.
    """
    before = dict(_log.clusters)
    _log.clusters.pop((namespace, cluster), None)
    if level not in (None, LogLevel.INFO):
        _log.clusters[namespace, cluster] = _number(LogLevel(level))
    if _log.clusters != before:
        least = min([_number(_log.settings.level), *_log.clusters.values()])
        logging.getLogger("stele").setLevel(least if _log.clusters else logging.NOTSET)


def _number(level: LogLevel) -> int:
    return logging.getLevelNamesMapping()[level.value]
