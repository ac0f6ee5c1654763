"""ACL categories of all commands that a member offers, as Redis 7 has them, and what each does to its keys.

Subcommands are written `client|list`. A container such as `client` is a command of its own.
"""

from collections.abc import Sequence

READ, WRITE = 1, 2
"""What a command needs of a key; 0: any right, since it neither returns nor changes the value."""

_NAMES = {
    "keyspace": "dbsize del exists expire expireat expiretime flushall flushdb keys persist pexpire pexpireat"
    " pexpiretime pttl scan touch ttl type unlink",
    "read": "dbsize exists expiretime get getrange keys memory|usage mget pexpiretime pttl scan strlen substr"
    " touch ttl type",
    "write": "append decr decrby del expire expireat flushall flushdb getdel getex getset incr incrby"
    " incrbyfloat mset msetnx persist pexpire pexpireat psetex set setex setnx setrange stele.once unlink",
    "string": "append decr decrby get getdel getex getrange getset incr incrby incrbyfloat mget mset msetnx"
    " psetex set setex setnx setrange strlen substr",
    "pubsub": "psubscribe publish pubsub|channels pubsub|numpat pubsub|numsub pubsub|shardchannels"
    " pubsub|shardnumsub punsubscribe spublish ssubscribe subscribe sunsubscribe unsubscribe",
    "admin": "acl|deluser acl|dryrun acl|getuser acl|list acl|load acl|log acl|save acl|setuser acl|users"
    " client|list config|get config|set module|list",
    "fast": "append asking auth dbsize decr decrby discard echo exists expire expireat expiretime get getdel"
    " getex getset hello incr incrby incrbyfloat mget multi persist pexpire pexpireat pexpiretime ping pttl"
    " publish quit readonly readwrite reset select setnx spublish strlen time touch ttl type unlink unwatch"
    " watch",
    "slow": "acl acl|cat acl|deluser acl|dryrun acl|getuser acl|help acl|list acl|load acl|log acl|save"
    " acl|setuser acl|users acl|whoami client client|caching client|getname client|getredir client|help"
    " client|id client|info client|list client|maint_notifications client|reply client|setinfo"
    " client|setname client|tracking client|trackinginfo cluster cluster|help cluster|info cluster|keyslot"
    " cluster|myid cluster|nodes cluster|shards cluster|slots command command|count command|docs"
    " command|help command|info command|list config config|get config|help config|set del exec flushall"
    " flushdb getrange info keys memory memory|help memory|usage module module|help module|list mset msetnx"
    " psetex psubscribe pubsub pubsub|channels pubsub|help pubsub|numpat pubsub|numsub pubsub|shardchannels"
    " pubsub|shardnumsub punsubscribe scan set setex setrange ssubscribe stele.once subscribe substr"
    " sunsubscribe unsubscribe wait",
    "dangerous": "acl|deluser acl|dryrun acl|getuser acl|list acl|load acl|log acl|save acl|setuser"
    " acl|users client|list config|get config|set flushall flushdb info keys module|list",
    "connection": "asking auth client|caching client|getname client|getredir client|help client|id"
    " client|info client|list client|maint_notifications client|reply client|setinfo client|setname"
    " client|tracking client|trackinginfo command command|count command|docs command|help command|info"
    " command|list echo hello ping quit readonly readwrite reset select wait",
    "transaction": "discard exec multi unwatch watch",
}

_EMPTY = (
    "set",
    "sortedset",
    "list",
    "hash",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "blocking",
    "scripting",
)
"""Categories of Redis of which no command is offered; rules may name them."""

CATEGORIES = {
    **{category: frozenset(names.split()) for category, names in _NAMES.items()},
    **dict.fromkeys(_EMPTY, frozenset[str]()),
}
COMMANDS = frozenset[str]().union(*CATEGORIES.values())
"""All commands and subcommands."""

CONTAINERS = frozenset(name.partition("|")[0] for name in COMMANDS if "|" in name)

WITHOUT_RIGHTS = frozenset({"auth", "hello", "quit", "reset"})
"""Everybody may run these, also before AUTH."""

SUBSCRIBES = frozenset({b"SUBSCRIBE", b"SSUBSCRIBE"})
PUBLISHES = frozenset({b"PUBLISH", b"SPUBLISH"})

_ALL_KEYS = frozenset({b"MGET", b"DEL", b"UNLINK", b"EXISTS", b"TOUCH", b"WATCH"})
_PAIRS = frozenset({b"MSET", b"MSETNX"})
_NEEDS = {
    **dict.fromkeys((b"EXISTS", b"TOUCH", b"WATCH", b"STRLEN", b"TYPE", b"MEMORY"), 0),
    **dict.fromkeys((b"GET", b"MGET", b"GETRANGE", b"SUBSTR", b"TTL", b"PTTL"), READ),
    **dict.fromkeys((b"EXPIRETIME", b"PEXPIRETIME"), READ),
    **dict.fromkeys(
        (b"SET", b"SETNX", b"SETEX", b"PSETEX", b"MSET", b"MSETNX", b"SETRANGE", b"APPEND"), WRITE
    ),
    **dict.fromkeys((b"DEL", b"UNLINK", b"PERSIST"), WRITE),
    **dict.fromkeys((b"EXPIRE", b"PEXPIRE", b"EXPIREAT", b"PEXPIREAT"), WRITE),
    **dict.fromkeys((b"GETSET", b"GETDEL", b"GETEX", b"INCR", b"DECR", b"INCRBY"), READ | WRITE),
    **dict.fromkeys((b"DECRBY", b"INCRBYFLOAT"), READ | WRITE),
}


_IDS = {name.upper().encode(): name for name in COMMANDS}


def id_of(name: bytes, request: Sequence[bytes]) -> str:
    """Return what rules call a request with this upper-case name; the container's for no known subcommand.

    Empty for no command of COMMANDS.
    """
    command = _IDS.get(name, "")
    if command in CONTAINERS and len(request) > 1:
        return _IDS.get(b"%b|%b" % (name, request[1].upper()), command)
    return command


def keys_of(name: bytes, request: Sequence[bytes]) -> tuple[Sequence[bytes], int]:
    """Return the keys of a request with this upper-case name, and what it needs of each."""
    needs = _NEEDS.get(name)
    if needs is None:
        return (), 0
    if name in _ALL_KEYS:
        return request[1:], needs
    if name in _PAIRS:
        return request[1::2], needs
    if name == b"MEMORY":
        return (request[2:3] if id_of(name, request) == "memory|usage" else ()), needs
    if name == b"SET" and any(word.upper() == b"GET" for word in request[3:]):
        needs |= READ
    return request[1:2], needs


def channels_of(name: bytes, request: Sequence[bytes]) -> Sequence[bytes]:
    """Return the channels, or for PSUBSCRIBE the patterns, of a request with this upper-case name."""
    if name in SUBSCRIBES or name == b"PSUBSCRIBE":
        return request[1:]
    return request[1:2] if name in PUBLISHES else ()
