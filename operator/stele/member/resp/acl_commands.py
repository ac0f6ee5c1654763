"""AUTH and ACL. Users are in a file of the cluster, so the subcommands that change them are refused."""

from collections.abc import Callable

from stele.core.kv.acl import User, compile_user, may_run
from stele.core.kv.command_categories import CATEGORIES, CONTAINERS, id_of
from stele.core.kv.commands import Failure, Simple, text_of
from stele.member.resp.access import DEFAULT, EVERYTHING, NO_PASSWORD, Account
from stele.member.resp.session import ClientSession, RefusedError, Server, parse_number
from stele.member.resp.subcommands import refusal_or_help
from stele.member.resp.tracking import turn_off
from stele.wire.resp import Answer, Request

LOG_ENTRIES_DEFAULT = 10

OK = Simple("OK")
_SYNTAX = Failure("ERR", "syntax error")
_ELSEWHERE = "no command changes users: edit the TabletUser of this user (kubectl edit tabletuser NAME)"
_DEFAULT_USER = compile_user("default", EVERYTHING)
"""Who everybody is while clients need not authenticate."""


async def auth(server: Server, session: ClientSession, request: Request) -> Answer:
    """Answer AUTH [user] password."""
    if len(request) > 3:
        return _SYNTAX
    if len(request) == 2 and not server.access.required and DEFAULT not in server.access.users:
        return NO_PASSWORD
    user, password = request[1:] if len(request) == 3 else (DEFAULT, request[1])
    return await log_in(server, session, user, password) or OK


async def log_in(server: Server, session: ClientSession, user: bytes, password: bytes) -> Failure | None:
    """Make a session that of a user, or return why not. What another user has begun in it ends."""
    before = session.account
    refused = await server.access.log_in(session, user, password)
    if refused is not None:
        return refused
    if session.account is not before:
        server.pubsub.leave(session)
        turn_off(server, session)
        session.transaction.reset()
    guard = session.guard
    if guard is not None and guard.keyspaces:
        session.keyspace = session.database = guard.keyspaces[0]
    if session.connection is not None:
        session.connection.update_access()
    return None


def acl(server: Server, session: ClientSession, request: Request) -> Answer:
    """Answer ACL with one of its subcommands."""
    if (answer := refusal_or_help(request, _SUBCOMMANDS)) is not None:
        return answer
    return _SUBCOMMANDS[request[1].upper()][1](server, session, request)


def _who_am_i(server: Server, session: ClientSession, request: Request) -> Answer:
    return session.user


def _categories(server: Server, session: ClientSession, request: Request) -> Answer:
    if len(request) == 2:
        return [name.encode() for name in CATEGORIES]
    if len(request) > 3:
        raise RefusedError("unknown subcommand or wrong number of arguments for 'CAT'. Try ACL HELP.")
    names = CATEGORIES.get(text_of(request[2]).lower())
    if names is None:
        raise RefusedError(f"Unknown category '{text_of(request[2])}'")
    return [name.encode() for name in sorted(names)]


def _users(server: Server, session: ClientSession, request: Request) -> Answer:
    names = set(server.access.users)
    return sorted(names if server.access.required else names | {DEFAULT})


def _rights(server: Server, name: bytes) -> tuple[User | None, Account | None]:
    account = server.access.users.get(name)
    if account is None:
        return (None if server.access.required or name != DEFAULT else _DEFAULT_USER), None
    return account.rights, account


def _list(server: Server, session: ClientSession, request: Request) -> Answer:
    names = _users(server, session, request)
    assert isinstance(names, list)
    return [_line(server, name) for name in names]


def _line(server: Server, name: bytes) -> bytes:
    rights, account = _rights(server, name)
    assert rights is not None
    parts = [*_flags(rights, account), *_hashes(account, "#"), *rights.rules]
    return f"user {rights.name} {' '.join(parts)}".encode()


def _flags(rights: User, account: Account | None) -> list[str]:
    return ["on" if rights.active else "off", *(["nopass"] if account is None else [])]


def _hashes(account: Account | None, mark: str = "") -> list[str]:
    """Return SHA-256 of generated passwords; of chosen ones, which could be guessed, that there is one."""
    texts = () if account is None else account.entry.passwords
    kinds = (text.partition(":") for text in texts)
    return [f"{mark}{rest}" if kind == "sha256" else f"{mark}{kind}" for kind, _, rest in kinds]


def _get_user(server: Server, session: ClientSession, request: Request) -> Answer:
    rights, account = _rights(server, request[2])
    if rights is None:
        return None
    keys = [rule for rule in rights.rules if rule[0] in "~%"]
    channels = [rule for rule in rights.rules if rule[0] == "&"]
    certificate = "" if account is None else account.entry.certificate
    return {
        b"flags": [flag.encode() for flag in _flags(rights, account)],
        b"passwords": [each.encode() for each in _hashes(account)],
        b"commands": " ".join(rights.command_rules).encode(),
        b"keys": " ".join(keys).encode(),
        b"channels": " ".join(channels).encode(),
        b"selectors": [],
        b"keyspaces": list(rights.keyspaces),
        **({b"certificate": certificate.encode()} if certificate else {}),
    }


def _dry_run(server: Server, session: ClientSession, request: Request) -> Answer:
    rights, _ = _rights(server, request[2])
    if rights is None:
        raise RefusedError(f"User '{text_of(request[2])}' not found")
    command = request[3:]
    name = command[0].upper()
    found = id_of(name, command)
    if not found or (found in CONTAINERS and len(command) > 1 and found != "command"):
        raise RefusedError(f"Command '{text_of(command[0])}' not found")
    keyspace = rights.keyspaces[0] if rights.keyspaces else session.keyspace
    denied = may_run(rights, name, command, keyspace)
    return OK if denied is None else denied.dry_run


def _log(server: Server, session: ClientSession, request: Request) -> Answer:
    if len(request) > 3:
        raise RefusedError("unknown subcommand or wrong number of arguments for 'LOG'. Try ACL HELP.")
    if len(request) == 3 and request[2].upper() == b"RESET":
        server.access.log.reset()
        return OK
    text = "value is out of range, must be positive"
    count = parse_number(request[2], text) if len(request) == 3 else LOG_ENTRIES_DEFAULT
    return server.access.log.newest(max(0, count)) if count else []


def _elsewhere(server: Server, session: ClientSession, request: Request) -> Answer:
    raise RefusedError(_ELSEWHERE)


# Name -> (arity as in Redis, the command included; handler).
_SUBCOMMANDS: dict[bytes, tuple[int, Callable[[Server, ClientSession, Request], Answer]]] = {
    b"WHOAMI": (2, _who_am_i),
    b"CAT": (-2, _categories),
    b"USERS": (2, _users),
    b"LIST": (2, _list),
    b"GETUSER": (3, _get_user),
    b"DRYRUN": (-4, _dry_run),
    b"LOG": (-2, _log),
    b"SETUSER": (-3, _elsewhere),
    b"DELUSER": (-3, _elsewhere),
    b"LOAD": (2, _elsewhere),
    b"SAVE": (2, _elsewhere),
}
