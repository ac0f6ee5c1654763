"""CONFIG, as far as clients ask for it: which events of keys a keyspace publishes."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Protocol

from stele.core.kv.commands import Failure, text_of, wrong_number
from stele.member.resp.pubsub import PubSub
from stele.member.resp.subcommands import refusal_or_help
from stele.wire.resp import Answer, Request

NOTIFY = "notify-keyspace-events"
SET_REFUSED = "is set by spec.notify of the Keyspace"


class Server(Protocol):
    """The part of the RESP server that is used here."""

    pubsub: PubSub


class Session(Protocol):
    """The part of a client's session that is used here."""

    keyspace: bytes


def config(server: Server, session: Session, request: Request) -> Answer:
    """Answer CONFIG GET, and refuse CONFIG SET: settings are fields of resources."""
    if (answer := refusal_or_help(request, _SUBCOMMANDS)) is not None:
        return answer
    return _SUBCOMMANDS[request[1].upper()][1](server, session, request[2:])


def _get(server: Server, session: Session, names: Request) -> Answer:
    asked = any(fnmatchcase(NOTIFY, text_of(name).lower()) for name in names)
    return {NOTIFY.encode(): server.pubsub.notify_of(session.keyspace).encode()} if asked else {}


def _set(server: Server, session: Session, names: Request) -> Answer:
    if len(names) % 2:
        return wrong_number(b"config|set")
    for name in names[::2]:
        if text_of(name).lower() != NOTIFY:
            return Failure("ERR", f"Unknown option or number of arguments for CONFIG SET - '{text_of(name)}'")
    return Failure("ERR", f"CONFIG SET failed (possibly related to argument '{NOTIFY}') - it {SET_REFUSED}")


# Name -> (arity as in Redis, the command included; handler).
_SUBCOMMANDS: dict[bytes, tuple[int, Callable[[Server, Session, Request], Answer]]] = {
    b"GET": (-3, _get),
    b"SET": (-4, _set),
}
