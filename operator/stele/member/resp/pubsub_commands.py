"""SUBSCRIBE, PSUBSCRIBE, SSUBSCRIBE, their opposites, PUBLISH, SPUBLISH and PUBSUB.

See Redis documentation, "Pub/Sub". On the cluster port a sharded channel belongs to the owner of its slot.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from stele.core.kv.commands import Failure, Simple, text_of
from stele.member.resp.pubsub import PubSub, Subscriber, SubscriptionRefusedError
from stele.member.resp.subcommands import refusal_or_help
from stele.wire.resp import Answer, Push, Request, Several

CHANNELS_BYTES_MAX = 1024 * 1024
"""Longest list of PUBSUB CHANNELS."""

SUBSCRIBED_COMMANDS = frozenset(
    {
        *(b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE"),
        *(b"UNSUBSCRIBE", b"PUNSUBSCRIBE", b"SUNSUBSCRIBE"),
        *(b"PING", b"QUIT", b"RESET"),
    }
)
"""What a subscriber of RESP2 may use."""


class Server(Protocol):
    """The part of the RESP server that is used here."""

    pubsub: PubSub


async def _subscribe(server: Server, session: Subscriber, request: Request) -> Answer:
    try:
        counts = server.pubsub.subscribe(session, request[1:])
    except SubscriptionRefusedError as error:
        return Failure("ERR", str(error))
    await server.pubsub.listen()
    return _confirmed(b"subscribe", request[1:], counts)


def _ssubscribe(server: Server, session: Subscriber, request: Request) -> Answer:
    try:
        counts = server.pubsub.subscribe(session, request[1:], sharded=True)
    except SubscriptionRefusedError as error:
        return Failure("ERR", str(error))
    return _confirmed(b"ssubscribe", request[1:], counts)


async def _psubscribe(server: Server, session: Subscriber, request: Request) -> Answer:
    try:
        counts = await server.pubsub.subscribe_patterns(session, request[1:])
    except (SubscriptionRefusedError, ValueError) as error:
        return Failure("ERR", str(error))
    await server.pubsub.listen()
    return _confirmed(b"psubscribe", request[1:], counts)


def _unsubscribe(server: Server, session: Subscriber, request: Request) -> Answer:
    mine = session.subscriptions
    names = request[1:] or ([] if mine is None else list(mine.channels))
    counts = [server.pubsub.unsubscribe(session, name) for name in names]
    return _confirmed(b"unsubscribe", names, counts) if names else _none(b"unsubscribe", session)


def _punsubscribe(server: Server, session: Subscriber, request: Request) -> Answer:
    mine = session.subscriptions
    names = request[1:] or ([] if mine is None else list(mine.patterns))
    counts = [server.pubsub.unsubscribe_pattern(session, name) for name in names]
    return _confirmed(b"punsubscribe", names, counts) if names else _none(b"punsubscribe", session)


def _sunsubscribe(server: Server, session: Subscriber, request: Request) -> Answer:
    mine = session.subscriptions
    names = request[1:] or ([] if mine is None else list(mine.shard_channels))
    counts = [server.pubsub.unsubscribe(session, name, sharded=True) for name in names]
    return _confirmed(b"sunsubscribe", names, counts) if names else Push([b"sunsubscribe", None, 0])


def _confirmed(kind: bytes, names: Request, counts: list[int]) -> Answer:
    return Several([Push([kind, name, count]) for name, count in zip(names, counts, strict=True)])


def _none(kind: bytes, session: Subscriber) -> Answer:
    mine = session.subscriptions
    return Push([kind, None, 0 if mine is None else mine.count(sharded=False)])


async def _publish(server: Server, session: Subscriber, request: Request) -> Answer:
    return await server.pubsub.publish(request[1], request[2])


async def _spublish(server: Server, session: Subscriber, request: Request) -> Answer:
    return await server.pubsub.publish(request[1], request[2], sharded=True)


async def _pubsub(server: Server, session: Subscriber, request: Request) -> Answer:
    name, rest = request[1].upper(), request[2:]
    if (refusal := refusal_or_help(request, _SUBCOMMANDS)) is not None:
        return refusal
    if name in (b"CHANNELS", b"SHARDCHANNELS") and len(rest) > 1:
        text = "unknown subcommand or wrong number of arguments for"
        return Failure("ERR", f"{text} '{text_of(request[1])}'. Try PUBSUB HELP.")
    answer = _SUBCOMMANDS[name][1](server, name, rest)
    return await answer if isinstance(answer, Awaitable) else answer


async def _channels(server: Server, name: bytes, rest: Request) -> Answer:
    try:
        found = await server.pubsub.channels(rest[0] if rest else b"*", sharded=name == b"SHARDCHANNELS")
    except ValueError as error:
        return Failure("ERR", str(error))
    if (size := sum(map(len, found))) > CHANNELS_BYTES_MAX:
        text = f"names of {size} bytes exceed the limit of {CHANNELS_BYTES_MAX}; pass a narrower pattern"
        return Failure("ERR", text)
    return list(found)


def _numsub(server: Server, name: bytes, rest: Request) -> Answer:
    sharded = name == b"SHARDNUMSUB"
    return [part for each in rest for part in (each, server.pubsub.subscribers(each, sharded=sharded))]


def _numpat(server: Server, name: bytes, rest: Request) -> Answer:
    return server.pubsub.patterns


def _help(server: Server, name: bytes, rest: Request) -> Answer:
    return [Simple(line) for line in _HELP]


_HELP = (
    "PUBSUB <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CHANNELS [<pattern>]",
    "    Return the currently active channels matching a <pattern> (default: '*').",
    "NUMPAT",
    "    Return number of subscriptions to patterns.",
    "NUMSUB [<channel> ...]",
    "    Return the number of subscribers for the specified channels, excluding",
    "    pattern subscriptions(default: no channels).",
    "SHARDCHANNELS [<pattern>]",
    "    Return the currently active shard level channels matching a <pattern> (default: '*').",
    "SHARDNUMSUB [<shardchannel> ...]",
    "    Return the number of subscribers for the specified shard level channel(s)",
    "HELP",
    "    Prints this help.",
)

# Name -> (arity as in Redis, the command included; handler, which gets the name too).
_SUBCOMMANDS: dict[bytes, tuple[int, Callable[[Server, bytes, Request], Answer | Awaitable[Answer]]]] = {
    b"CHANNELS": (-2, _channels),
    b"NUMSUB": (-2, _numsub),
    b"NUMPAT": (2, _numpat),
    b"SHARDCHANNELS": (-2, _channels),
    b"SHARDNUMSUB": (-2, _numsub),
    b"HELP": (2, _help),
}

# Name -> (arity as in Redis, handler).
PUBSUB_COMMANDS: dict[
    bytes, tuple[int, Callable[[Server, Subscriber, Request], Answer | Awaitable[Answer]]]
] = {
    b"SUBSCRIBE": (-2, _subscribe),
    b"PSUBSCRIBE": (-2, _psubscribe),
    b"UNSUBSCRIBE": (-1, _unsubscribe),
    b"PUNSUBSCRIBE": (-1, _punsubscribe),
    b"PUBLISH": (3, _publish),
    b"SSUBSCRIBE": (-2, _ssubscribe),
    b"SUNSUBSCRIBE": (-1, _sunsubscribe),
    b"SPUBLISH": (3, _spublish),
    b"PUBSUB": (-2, _pubsub),
}
