"""Runs what does not go in the turn of all: requests of one connection, one segment after the other.

What is asked at once is asked with little room for replies, so that they fit in memory together. Commands
that did not run for want of room are asked again, one partition after the other, in the order of the
requests, and each reply is written before the next is asked for.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from stele.core.kv.commands import REPLY_BYTES_MAX, Failure, Reply
from stele.core.kv.keyslot import partition_of
from stele.errors import Corrupt, Unavailable
from stele.member import limits
from stele.member.resp.budget import ReplyBytes, TooManyRepliesError
from stele.member.resp.multi_key import (
    LATER,
    SEGMENT_COMMANDS_MAX,
    Segment,
    first_room,
    is_keyed,
    join,
    pieces,
)
from stele.member.resp.session_commands import ClientSession, Server, answer
from stele.wire.resp import Request, encode_map, encode_reply

WRITE_BYTES = 64 * 1024
"""Replies are written when they are about so many bytes."""

ALONE_BYTES = 4 * 1024
"""After so many bytes of answers about the member itself others get their turn."""

Put = Callable[[list[bytes]], Awaitable[None]]


class Host(Server, Protocol):
    """What is needed of the RESP server."""

    replies: ReplyBytes

    def failure(self, error: BaseException) -> Failure: ...


class PipelineRunner:
    """For what one connection asked until all of it is answered; `put` takes the bytes of replies, and waits
    while the client does not read. After a wait for room in vain, what follows takes the room that is there.
    """

    def __init__(self, server: Host, session: ClientSession, put: Put) -> None:
        self._server = server
        self._session = session
        self._put = put
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._held = 0
        self._encoded = 0
        self._wait_seconds = limits.WAIT_SECONDS_MAX

    async def run(self, requests: Sequence[Request]) -> None:
        """Run them and write their replies, in order. Never raises for what a client sent but
        TooManyRepliesError.
        """
        try:
            await self._run(requests)
        finally:
            self._hold(-self._held)

    async def _run(self, requests: Sequence[Request]) -> None:
        segment = self._segment()
        for request in requests:
            name = request[0].upper()
            if is_keyed(name) and len(request) <= SEGMENT_COMMANDS_MAX:
                segment.add(name, request)
                if len(segment.commands) >= SEGMENT_COMMANDS_MAX:
                    await self._flush(segment)
                    segment = self._segment()
                continue
            await self._flush(segment)
            segment = self._segment()
            await self._alone(name, request)
            if self._session.quitting:
                break
            if self._out_bytes >= ALONE_BYTES:
                # A long answer was work: some commands look at a thousand names, or at all clients.
                await self._write()
                await asyncio.sleep(0)
        await self._flush(segment)
        await self._write()

    async def complete(self, requests: Sequence[Request], results: list[Reply]) -> None:
        """Write the replies of commands on single keys that ran already, and run those that are LATER."""
        segment = self._segment()
        for request in requests:
            segment.add(request[0].upper(), request)
        try:
            self._hold(sum(map(_size, results)))
            await self._give(segment, results)
            await self._write()
        finally:
            self._hold(-self._held)

    def _hold(self, size: int) -> None:
        self._held += size
        self._server.replies.add(size)

    def _segment(self) -> Segment:
        return Segment(self._server.store.partitions)

    async def _alone(self, name: bytes, request: Request) -> None:
        if is_keyed(name):
            self._encode(await self._pieces(name, request))
            return
        try:
            made = await answer(self._server, self._session, name, request)
        except Exception as error:  # noqa: BLE001  every request gets an answer, see RespServer.failure
            made = self._server.failure(error)
        if isinstance(made, dict):
            encode_map(made, self._out, self._session.resp3)
        else:
            self._encode(made)

    async def _pieces(self, name: bytes, request: Request) -> Reply:
        """The reply to a request of very many keys, which runs piece by piece."""
        replies: list[Reply] = []
        size = 0
        for piece in pieces(name, request):
            segment = self._segment()
            segment.add(name, piece)
            results = await self._first(segment)
            reply = await self._whole(segment, 0, results, size)
            replies.append(reply)
            size += sum(map(_size, results))
            self._encoded += sum(map(_size, results))
            if size > limits.REQUEST_REPLY_BYTES_MAX:
                return reply
        return join(name, replies)

    async def _flush(self, segment: Segment) -> None:
        if segment:
            await self._give(segment, await self._first(segment))

    async def _first(self, segment: Segment) -> list[Reply]:
        """Ask all partitions at once; what has no room is LATER."""
        results: list[Reply] = [LATER] * len(segment.commands)
        room = first_room(len(segment.groups))
        groups = [self._group(segment, partition, results, room) for partition in segment.groups]
        if len(groups) == 1:
            await groups[0]
        elif groups:
            await asyncio.gather(*groups)
        self._check()
        return results

    def _check(self) -> None:
        if self._server.replies.is_full:
            raise TooManyRepliesError

    async def _group(self, segment: Segment, partition: int, results: list[Reply], room: int) -> None:
        """The commands of one partition, call after call, until one has no room."""
        for call in segment.calls(segment.groups[partition]):
            ran = await self._ask(segment, partition, call, results, room)
            if ran < len(call) or self._server.replies.is_full:
                return

    async def _ask(
        self, segment: Segment, partition: int, call: list[int], results: list[Reply], room: int
    ) -> int:
        """How many of these commands ran. An error answers all of them."""
        commands = [segment.commands[place] for place in call]
        try:
            replies = await self._server.store.execute(partition, self._session.keyspace, commands, room)
        except Exception as error:  # noqa: BLE001  every request gets an answer, see RespServer.failure
            replies = [self._server.failure(error)] * len(call)
        for place, reply in zip(call, replies, strict=False):
            results[place] = reply
        self._hold(sum(map(_size, replies)))
        return len(replies)

    async def _give(self, segment: Segment, results: list[Reply]) -> None:
        for number in range(len(segment.answers)):
            places = segment.places(number)
            if any(results[place] is LATER for place in places):
                await self._write()
            self._encode(await self._whole(segment, number, results, 0))
            for place in places:
                self._encoded += _size(results[place])
                results[place] = None
            if self._out_bytes >= WRITE_BYTES:
                await self._write()

    async def _whole(self, segment: Segment, number: int, results: list[Reply], size: int) -> Reply:
        """The reply to one request of the segment, of which `size` bytes are there already."""
        for place in segment.places(number):
            if results[place] is LATER:
                await self._later(segment, place, results)
            size += _size(results[place])
            if size > limits.REQUEST_REPLY_BYTES_MAX:
                return _too_long(size)
        return segment.reply(number, results)

    async def _later(self, segment: Segment, place: int, results: list[Reply]) -> None:
        """Ask again: with room for any reply, and the commands on that partition behind this one, too."""
        partition = partition_of(segment.key(place), segment.partitions)
        behind = [p for p in segment.groups[partition] if p >= place and results[p] is LATER]
        call = next(iter(segment.calls(behind)))
        room = REPLY_BYTES_MAX + limits.REPLY_BYTES
        try:
            await self._server.replies.take(room, self._wait_seconds)
        except Unavailable as error:
            self._wait_seconds = 0.0
            results[place] = self._server.failure(error)
            return
        try:
            ran = await self._ask(segment, partition, call, results, REPLY_BYTES_MAX)
        finally:
            self._server.replies.add(-room)
        self._check()
        if not ran:
            text = f"partition {partition}: its owner has no room for any reply"
            results[place] = self._server.failure(Corrupt(text))

    def _encode(self, reply: Reply) -> None:
        before = len(self._out)
        encode_reply(reply, self._out, self._session.resp3)
        self._out_bytes += sum(map(len, self._out[before:]))

    async def _write(self) -> None:
        out, self._out, self._out_bytes = self._out, [], 0
        written, self._encoded = self._encoded, 0
        if out:
            await self._put(out)
        self._hold(-written)


def _size(reply: Reply) -> int:
    return len(reply) if type(reply) is bytes else 0


def _too_long(size: int) -> Failure:
    most = limits.REQUEST_REPLY_BYTES_MAX
    return Failure(
        "ERR", f"reply of {size} bytes and more: at most {most} are given; ask for fewer keys at once"
    )
