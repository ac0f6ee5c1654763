"""Runs the requests of one connection that cannot join a common batch, segment by segment.

The first attempt reserves little room for replies, so that all fit into memory together. Commands that did
not run for lack of room are sent again, one partition after the other in the order of requests, and each
reply is written before the next is requested.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from stele.core.kv.commands import OK, REPLY_BYTES_MAX, Failure, Reply, has_arity
from stele.core.kv.keyslot import partition_of, slot_of
from stele.core.kv.transaction import FINGERPRINT
from stele.errors import Corrupt, Unavailable
from stele.member import limits
from stele.member.resp.budget import ReplyBytes, TooManyRepliesError
from stele.member.resp.cluster_commands import redirection
from stele.member.resp.multi_key import (
    LATER,
    SEGMENT_COMMANDS_MAX,
    Segment,
    first_room,
    is_keyed,
    join,
    keys_of,
    pieces,
)
from stele.member.resp.session_commands import ClientSession, Server, answer
from stele.member.resp.transactions import (
    ABORTED,
    NOT_QUEUED,
    TRANSACTION_ARITIES,
    Queue,
)
from stele.wire.resp import Answer, Request, encode_reply

WRITE_BYTES = 64 * 1024
"""Replies are written when they reach about this size."""

ALONE_BYTES = 4 * 1024
"""After this many bytes of replies about the member itself, other connections get a turn."""

Put = Callable[[list[bytes]], Awaitable[None]]


class Host(Server, Protocol):
    """The part of the RESP server that is used here."""

    replies: ReplyBytes

    def failure(self, error: BaseException) -> Failure: ...


class PipelineRunner:
    """Runs the requests of one connection until all are answered.

    `put` takes the bytes of replies, and waits while the client does not read. After a wait for room has
    timed out, further commands only use the room that is free.
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
        """Run requests and write their replies, in order. Raises nothing but TooManyRepliesError."""
        try:
            await self._run(requests)
        finally:
            self._hold(-self._held)

    async def _run(self, requests: Sequence[Request]) -> None:
        segment = self._segment()
        for request in requests:
            name = request[0].upper()
            redirected = self._redirection(name, request)
            if redirected is not None:
                self._session.transaction.refused()
                segment.answers.append(redirected)
                continue
            transactional = self._session.transaction or name in TRANSACTION_ARITIES
            if not transactional and is_keyed(name) and len(request) <= SEGMENT_COMMANDS_MAX:
                segment.add(name, request)
                if len(segment.commands) >= SEGMENT_COMMANDS_MAX:
                    await self._flush(segment)
                    segment = self._segment()
                continue
            await self._flush(segment)
            segment = self._segment()
            if transactional:
                await self._transactional(name, request)
            else:
                await self._alone(name, request)
            if self._session.quitting:
                break
            if self._out_bytes >= ALONE_BYTES:
                # A long reply was work: some commands process a thousand names, or all clients.
                await self._write()
                await asyncio.sleep(0)
        await self._flush(segment)
        await self._write()

    async def complete(self, requests: Sequence[Request], results: list[Reply]) -> None:
        """Write the replies of single-key commands that have run, and run those that are LATER."""
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

    def _redirection(self, name: bytes, request: Request) -> Failure | None:
        """Return the error that sends a client of the cluster protocol to another member."""
        return redirection(self._server, name, request) if self._session.cluster else None

    async def _alone(self, name: bytes, request: Request) -> None:
        if is_keyed(name):
            self._encode(await self._pieces(name, request))
            return
        try:
            reply = await answer(self._server, self._session, name, request)
        except Exception as error:  # noqa: BLE001  every request gets an answer, see RespServer.failure
            reply = self._server.failure(error)
        self._encode(reply)

    # -- transactions

    async def _transactional(self, name: bytes, request: Request) -> None:
        """Run one request of a connection that is in a transaction, watches keys, or begins to."""
        queue = self._session.transaction.queue
        if queue is not None and name not in NOT_QUEUED:
            self._encode(queue.add(name, request))
        elif name in TRANSACTION_ARITIES:
            reply = await self._of_transaction(name, request)
            if name == b"EXEC" and reply is None:
                self._out.append(b"_\r\n" if self._session.resp3 else b"*-1\r\n")
            else:
                self._encode(reply)
        elif is_keyed(name):
            await self._seen(name, request)
        else:
            await self._alone(name, request)

    async def _of_transaction(self, name: bytes, request: Request) -> Reply:
        transaction = self._session.transaction
        if not has_arity(TRANSACTION_ARITIES[name], request):
            return transaction.misused(name)
        if name == b"WATCH":
            return transaction.check_watch(request[1:]) or await self._watch(request[1:])
        if name == b"EXEC" and transaction.queue is not None:
            try:
                return await self._exec(transaction.queue)
            finally:
                transaction.reset()
        return transaction.change(name)

    async def _watch(self, keys: Sequence[bytes]) -> Reply:
        segment = self._segment()
        segment.answers.extend(segment.place([FINGERPRINT, key], key) for key in keys)
        results = await self._first(segment)
        found = [await self._whole(segment, number, results, 0) for number in range(len(keys))]
        failure = next((reply for reply in found if not isinstance(reply, bytes)), None)
        if failure is not None:
            return failure
        for key, reply in zip(keys, found, strict=True):
            assert isinstance(reply, bytes)
            self._session.transaction.watch(self._session.keyspace, key, reply)
        return OK

    async def _exec(self, queue: Queue) -> Reply:
        """Return the replies, or None when a watched key has changed."""
        transaction, partitions = self._session.transaction, self._server.store.partitions
        if queue.failed:
            return ABORTED
        if transaction.touched:
            return None
        if not queue.commands and not transaction.watches:
            return queue.joined([])
        place = slot_of if self._session.cluster else lambda key: partition_of(key, partitions)
        command = transaction.command(queue, place)
        if isinstance(command, Failure):
            return command
        segment = self._segment()
        segment.answers.append(segment.place(command, command[1]))
        reply = await self._whole(segment, 0, await self._first(segment), 0)
        return queue.joined(reply) if isinstance(reply, list) else reply

    async def _seen(self, name: bytes, request: Request) -> None:
        """Run a request, and compare the watched keys among its own as they are at that moment."""
        transaction, keyspace = self._session.transaction, self._session.keyspace
        keys = [key for key in keys_of(name, request) if (keyspace, key) in transaction.watches]
        if len(request) > SEGMENT_COMMANDS_MAX:
            # It runs in pieces, between which a key may change and change back.
            if keys:
                transaction.touch()
            await self._alone(name, request)
            return
        segment = self._segment()
        segment.add(name, request)
        places = [(key, segment.place([FINGERPRINT, key], key)) for key in keys]
        if keys and any(len(list(segment.calls(group))) > 1 for group in segment.groups.values()):
            transaction.touch()
        results = await self._first(segment)
        self._encode(await self._whole(segment, 0, results, 0))
        for key, place in places:
            transaction.see(keyspace, key, results[place])

    async def _pieces(self, name: bytes, request: Request) -> Reply:
        """Return the reply to a request with very many keys, which runs piece by piece."""
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
        """Send to all partitions at once; commands without room for their reply are LATER."""
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
        """Run the commands of one partition, call after call, until one has no room."""
        for call in segment.calls(segment.groups[partition]):
            ran = await self._ask(segment, partition, call, results, room)
            if ran < len(call) or self._server.replies.is_full:
                return

    async def _ask(
        self, segment: Segment, partition: int, call: list[int], results: list[Reply], room: int
    ) -> int:
        """Run commands and return how many ran. An error answers all of them."""
        commands = [segment.commands[index] for index in call]
        try:
            replies = await self._server.store.execute(partition, self._session.keyspace, commands, room)
        except Exception as error:  # noqa: BLE001  every request gets an answer, see RespServer.failure
            replies = [self._server.failure(error)] * len(call)
        for index, reply in zip(call, replies, strict=False):
            results[index] = reply
        self._hold(sum(map(_size, replies)))
        return len(replies)

    async def _give(self, segment: Segment, results: list[Reply]) -> None:
        for number in range(len(segment.answers)):
            indexes = segment.places(number)
            if any(results[index] is LATER for index in indexes):
                await self._write()
            self._encode(await self._whole(segment, number, results, 0))
            for index in indexes:
                self._encoded += _size(results[index])
                results[index] = None
            if self._out_bytes >= WRITE_BYTES:
                await self._write()

    async def _whole(self, segment: Segment, number: int, results: list[Reply], size: int) -> Reply:
        """Return the reply to one request of the segment, `size` bytes of which are there already."""
        for index in segment.places(number):
            if results[index] is LATER:
                await self._later(segment, index, results)
            size += _size(results[index])
            if size > limits.REQUEST_REPLY_BYTES_MAX:
                return _too_long(size)
        return segment.reply(number, results)

    async def _later(self, segment: Segment, place: int, results: list[Reply]) -> None:
        """Run a command again, with room for any reply, and the later commands of its partition with it."""
        partition = partition_of(segment.key(place), segment.partitions)
        waiting = [p for p in segment.groups[partition] if p >= place and results[p] is LATER]
        call = next(iter(segment.calls(waiting)))
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
            text = f"partition {partition}: its owner returned no reply despite room for any"
            results[place] = self._server.failure(Corrupt(text))

    def _encode(self, reply: Answer) -> None:
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
        "ERR", f"reply of {size} bytes or more exceeds the limit of {most}; request fewer keys at once"
    )
