"""CLIENT: the names of connections, which there are, and which replies and messages they get."""

from collections.abc import Callable, Iterable
from math import inf

from stele.core.kv.commands import Simple, text_of
from stele.member.resp.session import ClientSession, RefusedError, Server, parse_number
from stele.member.resp.subcommands import refusal_or_help, unknown_subcommand
from stele.member.resp.tracking import TRACKING_COMMANDS
from stele.wire.resp import Answer, Request

CLIENT_NAME_BYTES_MAX = 256

OK = Simple("OK")


def client_name(raw: bytes) -> bytes:
    if len(raw) > CLIENT_NAME_BYTES_MAX:
        raise RefusedError(f"client name of {len(raw)} bytes exceeds the limit of {CLIENT_NAME_BYTES_MAX}")
    if any(not 33 <= char <= 126 for char in raw):
        raise RefusedError("Client names cannot contain spaces, newlines or special characters.")
    return raw


def client(server: Server, session: ClientSession, request: Request) -> Answer:
    """Answer CLIENT with one of its subcommands."""
    what = request[1].upper()
    if what == b"MAINT_NOTIFICATIONS" and not session.cluster:
        return unknown_subcommand(request)
    if (answer := refusal_or_help(request, _SUBCOMMANDS)) is not None:
        return answer
    return _SUBCOMMANDS[what][1](server, session, request)


def _id(server: Server, session: ClientSession, request: Request) -> Answer:
    return session.id


def _get_name(server: Server, session: ClientSession, request: Request) -> Answer:
    return session.name or None


def _set_name(server: Server, session: ClientSession, request: Request) -> Answer:
    session.name = client_name(request[2])
    return OK


def _info(server: Server, session: ClientSession, request: Request) -> Answer:
    return f"{session.line()}\n".encode()


def _list(server: Server, session: ClientSession, request: Request) -> Answer:
    return "".join(f"{one.line()}\n" for one in _listed(server, request[2:])).encode()


def _maintenance(server: Server, session: ClientSession, request: Request) -> Answer:
    """Begin or end messages about slots that have another owner. The type of addresses is no choice here."""
    rest = request[2:]
    wanted = rest[0].upper()
    is_known = len(rest) == 1 or (len(rest) == 3 and rest[1].upper() == b"MOVING-ENDPOINT-TYPE")
    if wanted not in (b"ON", b"OFF") or not is_known:
        raise RefusedError("syntax error")
    if not session.resp3:
        raise RefusedError("CLIENT MAINT_NOTIFICATIONS needs RESP3: send HELLO 3 first")
    if wanted == b"ON":
        server.slot_changes.begin(session)
    else:
        server.slot_changes.end(session)
    return OK


def _reply_mode(server: Server, session: ClientSession, request: Request) -> Answer:
    """Run CLIENT REPLY, whose own reply is sent for ON only."""
    mode = request[2].upper()
    if mode == b"ON":
        session.withheld = 0
    elif mode == b"OFF":
        session.withheld = inf
    elif mode == b"SKIP":
        session.withheld = max(session.withheld, 2)
    else:
        raise RefusedError("syntax error")
    return OK


def _listed(server: Server, rest: Request) -> Iterable[ClientSession]:
    """Return the sessions of CLIENT LIST, which takes `ID id [id ...]`."""
    if not rest:
        return server.sessions()
    if rest[0].upper() != b"ID" or len(rest) == 1:
        raise RefusedError("syntax error")
    wanted = {parse_number(raw, "Invalid client ID") for raw in rest[1:]}
    return [one for one in server.sessions() if one.id in wanted]


def _set_info(server: Server, session: ClientSession, request: Request) -> Answer:
    key, value = request[2].upper(), request[3]
    if key not in (b"LIB-NAME", b"LIB-VER"):
        raise RefusedError(f"Unrecognized option '{text_of(key)}': expected LIB-NAME or LIB-VER")
    session.library[key] = client_name(value)
    return OK


# Name -> (arity as in Redis, the command included; handler).
_SUBCOMMANDS: dict[bytes, tuple[int, Callable[[Server, ClientSession, Request], Answer]]] = {
    b"ID": (2, _id),
    b"GETNAME": (2, _get_name),
    b"SETNAME": (3, _set_name),
    b"SETINFO": (4, _set_info),
    b"INFO": (2, _info),
    b"LIST": (-2, _list),
    b"REPLY": (3, _reply_mode),
    b"MAINT_NOTIFICATIONS": (-3, _maintenance),
    **{name: (-2, run) for name, run in TRACKING_COMMANDS.items()},
}
