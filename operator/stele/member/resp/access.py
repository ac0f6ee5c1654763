"""Who the clients of this member are, and what each may do.

The users are those of the file (`users_file`), and the master says whether every client must be one of them.
What a connection may do is in its session: `guard` is None where nothing is checked, NOBODY while the client
has to authenticate, else the rights of its user. Other members trust what comes from this one.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from stele.core.control.member_settings import ClientAuth
from stele.core.kv.acl import STEPS_AT_ONCE, Denial, User, may_run, steps_of
from stele.core.kv.command_categories import WITHOUT_RIGHTS
from stele.core.kv.commands import Failure
from stele.member.resp.acl_log import AclLog
from stele.member.resp.byte_rate import ByteRate
from stele.member.resp.failed_logins import FailedLogins
from stele.member.resp.passwords import NO_PASSWORDS, BusyError, PasswordChecker, Passwords
from stele.wire.resp import Request
from stele.wire.users import UserEntry

DEFAULT = b"default"

NOBODY = User("", active=False)
"""The rights of a client that has to authenticate."""

EVERYTHING = ("~*", "&*", "+@all")

NOAUTH = Failure("NOAUTH", "Authentication required.")
NOAUTH_HELLO = Failure(
    "NOAUTH",
    "HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass>"
    " option can be used to authenticate the client and select the RESP protocol version at the same time",
)
WRONGPASS = Failure("WRONGPASS", "invalid username-password pair or user is disabled.")
NOT_TOLD = Failure(
    "LOADING", "this member has not been told by the master yet whether clients must authenticate; retry"
)
NO_PASSWORD = Failure(
    "ERR",
    "AUTH <password> called without any password configured for the default user. Are you sure your"
    " configuration is correct?",
)
_WITHOUT_RIGHTS = frozenset(name.upper().encode() for name in WITHOUT_RIGHTS)


class Account:
    """One user of the file. `guard` is what its connections are checked with, None when it may do all.

    `connections` counts those of this member; `rate` limits what they send and receive, if anything does.
    """

    __slots__ = ("connections", "entry", "guard", "passwords", "rate", "rights")

    def __init__(self, entry: UserEntry, rights: User) -> None:
        self.entry, self.rights = entry, rights
        self.guard = None if rights.unrestricted else rights
        self.passwords = Passwords(entry.passwords)
        self.connections = 0
        self.rate = ByteRate(entry.bytes_per_second) if entry.bytes_per_second else None

    def opened(self, by: int) -> None:
        """Count a connection that began, or -1 for one that ended."""
        self.connections += by


class Client(Protocol):
    """The connection of a session."""

    def cut(self) -> None:
        """Run nothing more, and close."""
        ...

    def update_access(self) -> None:
        """Apply the limits of those who have not authenticated, or end them."""
        ...


class Guest(Protocol):
    """A connection that has to authenticate."""

    @property
    def busy(self) -> bool:
        """Whether a request is unanswered."""
        ...

    def give_way(self) -> None:
        """Close, to make room."""
        ...


class Session(Protocol):
    """The part of a client's session that is used here."""

    address: str
    keyspace: bytes
    user: bytes
    guard: User | None
    account: Account | None
    credential: str
    database: bytes

    @property
    def certificate(self) -> Sequence[str]:
        """The names in the certificate that the client has shown."""
        ...

    @property
    def connection(self) -> Client | None: ...

    @property
    def hears(self) -> bool:
        """Whether it gets anything without asking."""
        ...

    def line(self) -> str: ...


Accounts = Mapping[bytes, Account]


class FileState(NamedTuple):
    """The digest of the file of users in use, empty without one, and why what is there is not used."""

    digest: str = ""
    problem: str = ""


class Access:
    """Users and level of one member. `level` is None until a master has told it: then users must log in.

    `file` is that of the users; while it cannot be read, those of before stay. `guests` are connections that
    have to authenticate, oldest first. `refused` counts those of them that made room for others, `evicted`,
    and connections that found none, `full`.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.level: ClientAuth | None = ClientAuth.OFF
        self.users: Accounts = {}
        self._certificates: Mapping[str, bytes] = {}
        self.file = FileState()
        self.log = AclLog(now)
        self.checker = PasswordChecker()
        self._failed = FailedLogins(now)
        self._sessions: Callable[[], Iterable[Session]] = tuple
        self.guests: dict[Guest, None] = {}
        self.refused = Counter[str]()

    def connect(self, sessions: Callable[[], Iterable[Session]]) -> None:
        """Apply changes to these sessions from now on."""
        self._sessions = sessions

    def connected(self) -> int:
        """Return the number of open connections of clients."""
        return sum(1 for _ in self._sessions())

    # -- what is in force

    @property
    def required(self) -> bool:
        """Whether a client must authenticate before anything else."""
        return self.level is ClientAuth.REQUIRED or (self.level is None and bool(self.users))

    @property
    def guest(self) -> User | None:
        """The guard of a client that has not authenticated."""
        return NOBODY if self.required else None

    @property
    def users_problem(self) -> str:
        """Return why the file of users has no effect, where anything is asked of clients; else nothing."""
        return "" if self.level is ClientAuth.OFF else self.file.problem

    def adopt(self, users: Accounts | None, level: ClientAuth | None, file: FileState) -> None:
        """Apply users, unless they are None, and the level: connections that may no longer be are cut."""
        self.file = file
        if users is None and level is self.level:
            return
        self.level = level
        if users is not None:
            self.users = users
            held = ((each.entry.certificate, name) for name, each in users.items())
            self._certificates = {certificate: name for certificate, name in held if certificate}
            self.checker.begin([each.passwords for each in users.values()])
        for session in self._sessions():
            self._update(session)

    def require(self, level: ClientAuth | None) -> None:
        """Apply what the master has said just now."""
        self.adopt(None, level, self.file)

    def _update(self, session: Session) -> None:
        if session.account is not None:
            self._keep_or_cut(session, session.account)
            return
        guard = self.guest
        if session.guard is guard:
            return
        session.guard = guard
        if guard is not None:
            self._log_in_by_certificate(session)
        if session.guard is not None and session.hears:
            _cut(session)
        elif session.connection is not None:
            session.connection.update_access()

    def _keep_or_cut(self, session: Session, account: Account) -> None:
        """Keep a connection whose user has the same rights, and still has what it logged in by."""
        now = self.users.get(session.user)
        if now is account:
            return
        same = now is not None and now.rights is account.rights
        if now is None or not same or session.credential not in now.entry.credentials:
            _cut(session)
            return
        account.opened(-1)
        now.opened(1)
        session.account = now

    # -- sessions

    def log_out(self, session: Session) -> None:
        """Make a session that of a new connection."""
        if session.account is not None:
            session.account.opened(-1)
        session.account, session.user, session.credential = None, DEFAULT, ""
        session.guard = self.guest

    def begin(self, session: Session) -> Failure | None:
        """Have a connection that begins be the user of its certificate, if that is somebody's.

        Return the error, if the user has too many connections.
        """
        refused = self._log_in_by_certificate(session)
        if session.guard is not None and session.guard.keyspaces:
            session.keyspace = session.database = session.guard.keyspaces[0]
        return refused

    def _log_in_by_certificate(self, session: Session) -> Failure | None:
        """A certificate that names nobody, several users or one who is locked out lets nobody in."""
        if not (self._certificates and session.certificate):
            return None
        named = {user for each in session.certificate if (user := self._certificates.get(each))}
        user = named.pop() if len(named) == 1 else b""
        account = self.users.get(user)
        if account is None or not account.rights.active:
            shown = session.certificate[0].encode()
            self.log.add("tls-cert", "toplevel", shown, user or session.user, session.line())
            return None
        return self._enter(session, user, account, account.entry.certificate)

    async def log_in(self, session: Session, user: bytes, password: bytes) -> Failure | None:
        """Check a password and have the session be of this user. Return the error, if it is not."""
        account = self.users.get(user)
        if account is None and user == DEFAULT and not self.required:
            self.log_out(session)
            return None
        address = session.address.rpartition(":")[0]
        if (seconds := self._failed.wait_seconds(address)) > 0:
            self._note_wrong(session, user)
            text = f"too many wrong passwords from {address}: wait {seconds:.0f} seconds"
            return Failure("WRONGPASS", text)
        try:
            found = await self.checker.find(NO_PASSWORDS if account is None else account.passwords, password)
        except BusyError as busy:
            return Failure("TRYAGAIN", str(busy))
        now = self.users.get(user)
        if found is None or now is None or found not in now.entry.passwords or not now.rights.active:
            self._failed.failed(address)
            self._note_wrong(session, user)
            return WRONGPASS
        return self._enter(session, user, now, found)

    def _note_wrong(self, session: Session, user: bytes) -> None:
        self.log.add("auth", "toplevel", b"AUTH", user, session.line())

    def _enter(self, session: Session, user: bytes, account: Account, credential: str) -> Failure | None:
        most = account.entry.connections_max
        if most and session.account is not account and account.connections >= most:
            text = f"user has {most} connections to this member, which is the limit (limits.connections)"
            return Failure("ERR", text)
        self.log_out(session)
        if session.connection is None:
            return NOAUTH
        account.opened(1)
        session.account, session.user, session.credential = account, user, credential
        session.guard = account.guard
        return None

    # -- requests

    def refuse_guest(self, name: bytes) -> Failure | None:
        """Return the error for a request, with this upper-case name, of a client that must authenticate."""
        if name in _WITHOUT_RIGHTS:
            return None
        return NOT_TOLD if self.level is None else NOAUTH

    def deny(self, session: Session, denied: Denial, context: str = "toplevel") -> Failure:
        """Note a refusal, and return its error."""
        self.log.add(denied.reason, context, denied.what, session.user, session.line())
        return denied.failure

    def leading(self, session: Session, requests: Sequence[Request]) -> list[Request]:
        """Return the leading ones, of those of one key each, that the client may run.

        Those that take long to check are left to the connection's task, which lets others have turns.
        """
        guard, keyspace = session.guard, session.keyspace
        found: list[Request] = []
        if guard is None or guard is NOBODY:
            return found
        steps = 0
        for each in requests:
            name = each[0].upper()
            steps += steps_of(guard, name, each)
            if steps > STEPS_AT_ONCE or may_run(guard, name, each, keyspace) is not None:
                break
            found.append(each)
        return found

    def facts(self) -> dict[str, str | int]:
        """Return the fields of INFO, by Redis' names where it has them."""
        counts = self.log.counts
        return {
            "acl_access_denied_auth": counts["auth"],
            "acl_access_denied_tls_cert": counts["tls-cert"],
            "acl_access_denied_cmd": counts["command"],
            "acl_access_denied_key": counts["key"] + counts["keyspace"],
            "acl_access_denied_channel": counts["channel"],
            "unauthenticated_clients": len(self.guests),
            "evicted_unauthenticated_clients": self.refused["evicted"],
            "rejected_connections": self.refused["full"],
        }


def _cut(session: Session) -> None:
    """Let a connection do nothing more, and close it."""
    session.guard = NOBODY
    if session.connection is not None:
        session.connection.cut()


def accounts_of(entries: Iterable[UserEntry], before: Accounts) -> Accounts:
    """Return accounts by name; those of which nothing is different, or only passwords, keep their rights."""
    found: dict[bytes, Account] = {}
    for entry in entries:
        name, old = entry.name.encode(), before.get(entry.name.encode())
        if old is None:
            found[name] = Account(entry, entry.rights())
        elif old.entry == entry:
            found[name] = old
        else:
            same = _rights_of(old.entry) == _rights_of(entry)
            found[name] = Account(entry, old.rights if same else entry.rights())
    return found


def _rights_of(entry: UserEntry) -> tuple[object, ...]:
    return entry.rules, entry.keyspaces, entry.active
