"""Rights of users: rules as Redis 7 writes them, compiled, and whether a user may run a request.

The rules are those of ACL SETUSER without passwords and selectors, which a file of users has no place for.
A user may besides be limited to some keyspaces. Patterns are bounded, so a check takes bounded time.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from stele.core.kv.command_categories import (
    CATEGORIES,
    COMMANDS,
    CONTAINERS,
    READ,
    WITHOUT_RIGHTS,
    WRITE,
    channels_of,
    id_of,
    keys_of,
)
from stele.core.kv.commands import Failure, text_of
from stele.core.kv.dedup import ONCE
from stele.core.kv.glob import Glob

RULES_MAX = 256
RULE_BYTES_MAX = 256
PATTERNS_MAX = 64
"""Patterns of keys of one user, and as many of channels."""

MATCH_STEPS_MAX = 4_000_000
"""Byte comparisons of one request with patterns, at most 20 ms; a request that may take more is refused."""
STEPS_AT_ONCE = 200_000
"""Of requests that take more together, the rest is checked in a later turn of the event loop."""
KEY_STEPS, PATTERN_STEPS = 256, 64
"""What each key or channel costs besides the comparisons, and each pattern of it."""

Rule = str


class RuleError(ValueError):
    """A rule is not possible; the text names it and what was expected."""


class KeyPattern(NamedTuple):
    """A pattern of keys, and READ, WRITE or both."""

    glob: Glob
    rights: int

    @property
    def rule(self) -> str:
        prefix = {READ: "%R~", WRITE: "%W~"}.get(self.rights, "~")
        return prefix + self.glob.text.decode()


class Denial(NamedTuple):
    """Why a request is refused. `reason` is command, key, channel or keyspace; `what` is the one refused.

    `too_many`: the request has more keys or channels than can be compared with the patterns of the user.
    """

    reason: str
    what: bytes
    too_many: bool = False

    @property
    def failure(self) -> Failure:
        """Return the error that Redis answers with."""
        if self.reason == "command":
            text = f"to run the '{text_of(self.what)}' command"
        elif self.reason == "keyspace":
            text = f"to use the keyspace '{text_of(self.what)}'"
        else:
            text = f"to access one of the {self.reason}s used as arguments"
        if self.too_many:
            text += (
                f": to compare them with its patterns takes more than {MATCH_STEPS_MAX} steps"
                f" (MATCH_STEPS_MAX); send fewer {self.reason}s at once"
            )
        return Failure("NOPERM", f"this user has no permissions {text}")

    @property
    def dry_run(self) -> bytes:
        """Return what ACL DRYRUN answers."""
        if self.reason == "command":
            return b"This user has no permissions to run the '%b' command" % self.what
        return b"This user has no permissions to access the '%b' %b" % (self.what, self.reason.encode())


@dataclass(frozen=True, slots=True)
class User:
    """The rights of one user. `commands` are ids as in COMMANDS; `all_commands`: also those that come later.

    `keyspaces` are those that it may select, the first one is where it begins; empty: all. `command_rules`
    is what `commands` was made of, for people.
    """

    name: str
    active: bool = True
    all_commands: bool = False
    commands: frozenset[str] = frozenset()
    command_rules: tuple[str, ...] = ("-@all",)
    keys: tuple[KeyPattern, ...] = ()
    channels: tuple[Glob, ...] = ()
    keyspaces: tuple[bytes, ...] = ()

    @property
    def all_keys(self) -> bool:
        return len(self.keys) == 1 and self.keys[0].glob.text == b"*" and self.keys[0].rights == READ | WRITE

    @property
    def all_channels(self) -> bool:
        return len(self.channels) == 1 and self.channels[0].text == b"*"

    @property
    def unrestricted(self) -> bool:
        """Whether it may run everything."""
        return self.all_commands and self.all_keys and self.all_channels and not self.keyspaces

    def may_select(self, keyspace: bytes) -> bool:
        return not self.keyspaces or keyspace in self.keyspaces

    def may_know(self, keyspace: bytes, key: bytes) -> bool:
        """Return whether it may hear that a key has changed: it has any right to it, as EXISTS needs."""
        return self.may_select(keyspace) and _refused_key(self, [key], 0) is None

    @property
    def rules(self) -> list[Rule]:
        """Return its rules in the order of ACL LIST."""
        keys = ["~*"] if self.all_keys else [each.rule for each in self.keys] or ["resetkeys"]
        channels = [f"&{each.text.decode()}" for each in self.channels]
        channels = ["&*"] if self.all_channels else ["resetchannels", *channels]
        return [*keys, *channels, *self.command_rules]


def may_run(user: User, name: bytes, request: Sequence[bytes], keyspace: bytes) -> Denial | None:
    """Return why a user may not run a request with this upper-case name in a keyspace, None if it may.

    The write of a STELE.ONCE is checked, too; one in another is no write, and never runs. FLUSHALL takes all
    keyspaces.
    """
    command = id_of(name, request)
    if not user.all_commands and command not in user.commands and command not in WITHOUT_RIGHTS:
        return Denial("command", command.encode())
    if name == ONCE:
        inner = request[3:]
        nothing = not inner or inner[0].upper() == ONCE
        return None if nothing else may_run(user, inner[0].upper(), inner, keyspace)
    keys, needs = keys_of(name, request)
    if steps_of(user, name, request) > MATCH_STEPS_MAX:
        kind, first = ("key", keys[0]) if keys else ("channel", channels_of(name, request)[0])
        return Denial(kind, first, too_many=True)
    if user.keyspaces and (denied := _refused_keyspace(user, name, keyspace, bool(keys))) is not None:
        return denied
    if keys and (key := _refused_key(user, keys, needs)) is not None:
        return Denial("key", key)
    channels = channels_of(name, request)
    if channels and (channel := _refused_channel(user, channels, literal=name == b"PSUBSCRIBE")) is not None:
        return Denial("channel", channel)
    return None


def steps_of(user: User, name: bytes, request: Sequence[bytes]) -> int:
    """Return an upper bound of the steps, of about 5 ns, in which `may_run` compares names with patterns."""
    if name == ONCE:
        name, request = request[3].upper() if len(request) > 3 else b"", request[3:]
    keys, channels = keys_of(name, request)[0], channels_of(name, request)
    globs: Sequence[Glob] = ()
    if keys and not user.all_keys:
        globs = [each.glob for each in user.keys]
    elif channels and not user.all_channels:
        globs = user.channels
    if not globs:
        return 0
    names = keys or channels
    size = sum(map(len, names))
    return len(names) * (KEY_STEPS + PATTERN_STEPS * len(globs)) + sum(each.steps(size) for each in globs)


_USES_KEYSPACE = frozenset({b"SCAN", b"DBSIZE", b"FLUSHDB"})


def _refused_keyspace(user: User, name: bytes, keyspace: bytes, keyed: bool) -> Denial | None:
    if name == b"FLUSHALL":
        return Denial("keyspace", b"*")
    if (keyed or name in _USES_KEYSPACE) and keyspace not in user.keyspaces:
        return Denial("keyspace", keyspace)
    return None


def _refused_key(user: User, keys: Sequence[bytes], needs: int) -> bytes | None:
    if user.all_keys:
        return None
    patterns = [each.glob for each in user.keys if each.rights & needs == needs]
    return next((key for key in keys if not any(each.matches(key) for each in patterns)), None)


def _refused_channel(user: User, channels: Sequence[bytes], *, literal: bool) -> bytes | None:
    """Return the first channel that is refused; a pattern must be one of the user's, letter by letter."""
    if user.all_channels:
        return None
    for channel in channels:
        if not any(each.text == channel if literal else each.matches(channel) for each in user.channels):
            return channel
    return None


# -- rules


def compile_user(
    name: str, rules: Sequence[Rule], keyspaces: Iterable[str] = (), *, active: bool = True
) -> User:
    """Return the user that rules make of one without rights; not `active`: whatever they say. Raises
    RuleError."""
    if len(rules) > RULES_MAX:
        raise RuleError(f"{len(rules)} rules; at most {RULES_MAX} are possible")
    user = User(name, keyspaces=tuple(each.encode() for each in keyspaces))
    for rule in rules:
        user = _apply(user, rule)
    return replace(user, active=user.active and active)


def _apply(user: User, rule: Rule) -> User:
    if len(rule.encode(errors="replace")) > RULE_BYTES_MAX:
        raise _wrong(rule, f"longer than {RULE_BYTES_MAX} bytes")
    if not rule or any(char.isspace() or char == "\0" or "\ud800" <= char <= "\udfff" for char in rule):
        raise _wrong(rule, "a rule has at least one character, and no space")
    if (word := _WORDS.get(rule.lower())) is not None:
        return word(user)
    if rule[0] in "+-":
        return _change_commands(user, rule)
    if rule[0] in "~%":
        return _add_keys(user, rule)
    if rule[0] == "&":
        return _add_channels(user, rule)
    if rule[0] in "><#!" or rule.lower() in ("nopass", "resetpass"):
        raise _wrong(rule, "passwords are no rules: they have a field of their own")
    if rule[0] == "(" or rule.lower() == "clearselectors":
        raise _wrong(rule, "selectors are not supported: make another user")
    raise _wrong(rule, f"Syntax error; expected {_EXPECTED}")


_EXPECTED = (
    "on, off, reset, +command, -command, +@category, -@category, +command|subcommand, allcommands,"
    " nocommands, ~pattern, %R~pattern, %W~pattern, %RW~pattern, allkeys, resetkeys, &pattern,"
    " allchannels, resetchannels"
)


def _wrong(rule: Rule, text: str) -> RuleError:
    return RuleError(
        f"Error in ACL rule '{text_of(without_password(rule).encode(errors='replace'))}': {text}"
    )


_PASSWORD = re.compile(r"((?:^|\s)[><#!]).+", re.DOTALL)


def without_password(rule: Rule, shown: str = "...") -> Rule:
    """Return a rule for people to read: `shown` stands for a password, or its hash, and all that follows."""
    return _PASSWORD.sub(lambda found: found[1] + shown, rule)


def _all_commands(user: User) -> User:
    return replace(user, all_commands=True, commands=COMMANDS, command_rules=("+@all",))


def _no_commands(user: User) -> User:
    return replace(user, all_commands=False, commands=frozenset(), command_rules=("-@all",))


def _all_keys(user: User) -> User:
    return replace(user, keys=(KeyPattern(Glob(b"*"), READ | WRITE),))


def _all_channels(user: User) -> User:
    return replace(user, channels=(Glob(b"*"),))


def _no_keys(user: User) -> User:
    return replace(user, keys=())


def _no_channels(user: User) -> User:
    return replace(user, channels=())


_WORDS: Mapping[str, Callable[[User], User]] = {
    "on": lambda user: replace(user, active=True),
    "off": lambda user: replace(user, active=False),
    "reset": lambda user: replace(_no_commands(_no_keys(_no_channels(user))), active=False),
    "allcommands": _all_commands,
    "+@all": _all_commands,
    "nocommands": _no_commands,
    "-@all": _no_commands,
    "allkeys": _all_keys,
    "~*": _all_keys,
    "resetkeys": _no_keys,
    "allchannels": _all_channels,
    "&*": _all_channels,
    "resetchannels": _no_channels,
}


def _change_commands(user: User, rule: Rule) -> User:
    """Add or remove what a rule names. Removing anything ends the right to commands of later versions."""
    names, added = _named(rule), rule[0] == "+"
    rest = tuple(each for each in user.command_rules if each[1:] != rule[1:].lower())
    return replace(
        user,
        all_commands=user.all_commands and added,
        commands=user.commands | names if added else user.commands - names,
        command_rules=(*rest, rule.lower()),
    )


def _named(rule: Rule) -> frozenset[str]:
    name = rule[1:].lower()
    if name.startswith("@") and name[1:] in CATEGORIES:
        return CATEGORIES[name[1:]]
    if name in CONTAINERS:
        return frozenset(each for each in COMMANDS if each == name or each.startswith(f"{name}|"))
    if name in COMMANDS:
        return frozenset({name})
    known = ", ".join(f"@{each}" for each in sorted(CATEGORIES))
    raise _wrong(
        rule, f"Unknown command or category name in ACL; expected one of COMMAND LIST, @all or {known}"
    )


def _add_keys(user: User, rule: Rule) -> User:
    flags, tilde, pattern = rule[1:].partition("~") if rule[0] == "%" else ("RW", "~", rule[1:])
    rights = {"R": READ, "W": WRITE, "RW": READ | WRITE, "WR": READ | WRITE}.get(flags.upper())
    if rights is None or not tilde:
        raise _wrong(rule, "Syntax error; expected %R~pattern, %W~pattern or %RW~pattern")
    if user.all_keys:
        raise _wrong(rule, _AFTER_ALL.format("allkeys", "resetkeys", "patterns"))
    if len(user.keys) >= PATTERNS_MAX:
        raise _wrong(rule, f"more than {PATTERNS_MAX} patterns of keys")
    glob = Glob(pattern.encode())
    same = next((each for each in user.keys if each.glob.text == glob.text), None)
    if same is not None:
        rights |= same.rights
    kept = tuple(each for each in user.keys if each is not same)
    if (glob.text, rights) == (b"*", READ | WRITE):
        return _all_keys(user)
    return replace(user, keys=(*kept, KeyPattern(glob, rights)))


def _add_channels(user: User, rule: Rule) -> User:
    if user.all_channels:
        raise _wrong(rule, _AFTER_ALL.format("allchannels", "resetchannels", "channels"))
    if len(user.channels) >= PATTERNS_MAX:
        raise _wrong(rule, f"more than {PATTERNS_MAX} patterns of channels")
    return replace(user, channels=(*user.channels, Glob(rule[1:].encode())))


_AFTER_ALL = (
    "Adding a pattern after the * pattern (or the '{}' flag) is not valid and does not have any effect. Try"
    " '{}' to start with an empty list of {}"
)
