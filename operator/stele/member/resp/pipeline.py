"""Runs the requests of one connection that cannot join a common batch, segment by segment.

The first attempt reserves little room for replies, so that all fit into memory together. Commands that did
not run for lack of room are sent again, one partition after the other in the order of requests, and each
reply is written before the next is requested.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from stele.core.kv.acl import STEPS_AT_ONCE, User, may_run, steps_of
from stele.core.kv.commands import OK, REPLY_BYTES_MAX, Failure, Reply, has_arity
from stele.core.kv.keyslot import partition_in, slot_of
from stele.core.kv.local_commands import refusal
from stele.core.kv.transaction import FINGERPRINT
from stele.errors import Corrupt, Unavailable
from stele.member import limits
from stele.member.resp import msetnx
from stele.member.resp.access import NOBODY
from stele.member.resp.budget import ReplyBytes, TooManyRepliesError
from stele.member.resp.cluster_commands import CROSSSLOT, redirection
from stele.member.resp.failures import for_cluster
from stele.member.resp.local import ask_local, exec_local, runs_here
from stele.member.resp.msetnx import MSETNX
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
from stele.member.resp.session import ClientSession, RefusedError, Server, is_local, undeclared
from stele.member.resp.session_commands import (
    answer,
    is_known,
    is_well_formed,
    refused_while_subscribed,
    unknown,
    uses_keyspace,
)
from stele.member.resp.transactions import (
    ABORTED,
    NOT_QUEUED,
    OTHER_PARTITIONS,
    RIGHTS_CHANGED,
    TRANSACTION_ARITIES,
    Queue,
    exec_failure,
)
from stele.member.resp.wait import wait_in_transaction
from stele.ports.transactions import PartitionPart
from stele.wire.resp import Answer, Push, Request, Several, encode_reply

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
        self._tracks = False
        self._steps = 0

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
            if self._session.tracking is not None or self._tracks:
                segment = await self._track(segment, name)
            await self._take_turn(name, request)
            refused = self._refusal(name, request)
            if refused is not None:
                self._session.transaction.refused()
                segment.answers.append(refused)
                continue
            transactional = self._session.transaction or name in TRANSACTION_ARITIES
            apart = name == MSETNX and self._is_apart(request)
            if not transactional and not apart and is_keyed(name) and len(request) <= SEGMENT_COMMANDS_MAX:
                segment.add(name, request)
                if len(segment.commands) >= SEGMENT_COMMANDS_MAX:
                    await self._flush(segment)
                    segment = self._segment()
                continue
            await self._flush(segment)
            if transactional:
                await self._transactional(name, request)
            else:
                await self._alone(name, request)
            segment = self._segment()
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

    async def _track(self, segment: Segment, name: bytes) -> Segment:
        """Have the next request tracked or not, and those before it as they are to be."""
        tracking = self._session.tracking
        tracks = tracking is not None and tracking.next(name)
        if tracks is not self._tracks:
            await self._flush(segment)
            segment, self._tracks = self._segment(), tracks
        return segment

    def _hold(self, size: int) -> None:
        self._held += size
        self._server.replies.add(size)

    def _segment(self) -> Segment:
        local = is_local(self._server, self._session)
        keyspace = self._session.keyspace
        return Segment(range(1) if local else self._server.store.group(keyspace), keyspace)

    def _refusal(self, name: bytes, request: Request) -> Failure | None:
        """Return the error of a request that does not run here, if it does not."""
        session = self._session
        if session.guard is not None and (refused := self._forbidden(session.guard, name, request)):
            return refused
        if runs_here(self._server, session, name):
            if is_well_formed(name, request) and (refused := refusal(name, request)):
                return refused
        elif session.cluster and is_well_formed(name, request):
            reads = session.seen is not None and session.seen.readonly and not session.transaction
            if refused := redirection(self._server, session.keyspace, name, request, reads_backups=reads):
                return refused
        if session.only_pubsub and (refused := refused_while_subscribed(session, name, request)):
            return refused
        return undeclared(self._server, session.keyspace) if uses_keyspace(name) else None

    async def _take_turn(self, name: bytes, request: Request) -> None:
        """Let others have a turn before rights are checked that take long, together with those before."""
        guard = self._session.guard
        if guard is None or guard is NOBODY:
            return
        self._steps += steps_of(guard, name, request)
        if self._steps > STEPS_AT_ONCE:
            self._steps = 0
            await self._server.turn_budget.run(limits.TURN_ENTRIES_MAX, bool)

    def _forbidden(self, guard: User, name: bytes, request: Request) -> Failure | None:
        """Return the error of a request that the client may not run. A malformed one does not run anyway."""
        session, access = self._session, self._server.access
        refused: Failure | None = None
        if guard is NOBODY:
            refused = access.refuse_guest(name)
        elif is_well_formed(name, request):
            denied = may_run(guard, name, request, session.keyspace)
            context = "toplevel" if session.transaction.queue is None else "multi"
            refused = None if denied is None else access.deny(session, denied, context)
        if refused is None:
            return None
        refused = exec_failure(refused) if name == b"EXEC" else refused
        return for_cluster(refused) if session.cluster else refused

    async def _alone(self, name: bytes, request: Request) -> None:
        if is_keyed(name):
            self._encode(await self._pieces(name, request))
            return
        self._take_pushes()
        try:
            reply = await answer(self._server, self._session, name, request)
        except Exception as error:  # noqa: BLE001  every request gets an answer, see RespServer.failure
            reply = self._failure(error)
        self._encode(reply)

    def _failure(self, error: BaseException) -> Failure:
        failure = self._server.failure(error)
        return for_cluster(failure) if self._session.cluster else failure

    def _take_pushes(self) -> None:
        """Have the messages that wait written before the next reply: a command may change their protocol."""
        connection = self._session.connection
        if connection is not None and (pushes := connection.take_pushes()):
            self._out.append(pushes)
            self._out_bytes += len(pushes)
            self._encoded += len(pushes)
            self._hold(len(pushes))

    # -- transactions

    async def _transactional(self, name: bytes, request: Request) -> None:
        """Run one request of a connection that is in a transaction, watches keys, or begins to."""
        queue = self._session.transaction.queue
        if queue is not None and not is_known(name):
            self._session.transaction.refused()
            self._encode(unknown(request))
        elif queue is not None and name not in NOT_QUEUED:
            self._encode(queue.add(name, request))
        elif name in TRANSACTION_ARITIES:
            reply = await self._of_transaction(name, request)
            if name == b"EXEC" and reply is None:
                self._encode_missing_array()
            else:
                self._encode(reply)
        elif is_keyed(name):
            await self._seen(name, request)
        else:
            await self._alone(name, request)

    async def _of_transaction(self, name: bytes, request: Request) -> Answer:
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
        return transaction.change(name, self._session.guard)

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

    async def _exec(self, queue: Queue) -> Answer:
        """Return the replies, or None when a watched key has changed."""
        replies = await self._exec_at_owner(queue)
        if not isinstance(replies, list):
            return replies
        answers: list[Answer] = [*replies]
        for place, request in queue.local.items():
            answers[place] = await self._exec_here(request)
        return answers

    async def _exec_here(self, request: Request) -> Answer:
        name = request[0].upper()
        if name == b"SSUBSCRIBE":
            return Failure("ERR", "SSUBSCRIBE isn't allowed for a DENY BLOCKING client")
        if name == b"WAIT":
            try:
                return await wait_in_transaction(self._server, self._session, request)
            except RefusedError as refused:
                return Failure("ERR", str(refused))
        return await answer(self._server, self._session, name, request)

    async def _exec_at_owner(self, queue: Queue) -> Reply:
        """Return the replies, or None when a watched key has changed."""
        session, transaction = self._session, self._session.transaction
        if queue.failed:
            return ABORTED
        if queue.guard is not session.guard:
            return RIGHTS_CHANGED
        if is_local(self._server, session):
            return await exec_local(self._server, session, queue, self._failure, tracks=self._tracks)
        if transaction.touched:
            return None
        used = transaction.keys(queue, session.keyspace)
        if not used:
            return queue.joined([])
        if session.cluster and len({slot_of(key) for _, key in used}) > 1:
            return CROSSSLOT
        if len({self._partition(*each) for each in used}) > 1:
            return await self._exec_at_owners(queue)
        keyspace, key = used[0]
        segment = Segment(self._server.store.group(keyspace), keyspace)
        segment.answers.append(segment.place(transaction.command(queue, key), key))
        reply = await self._whole(segment, 0, await self._first(segment), 0)
        return queue.joined(reply) if isinstance(reply, list) else reply

    def _partition(self, keyspace: bytes, key: bytes) -> int:
        return partition_in(self._server.store.group(keyspace), slot_of(key))

    async def _exec_at_owners(self, queue: Queue) -> Reply:
        """Return the same for keys of several partitions."""
        if not self._server.store.transactions.available:
            return OTHER_PARTITIONS
        parts, places = self._session.transaction.parts(queue, self._session.keyspace, self._partition)
        result = await self._run_parts(parts)
        if not isinstance(result, Mapping):
            return result
        replies = {partition: iter(each) for partition, each in result.items()}
        self._hold(sum(_size(reply) for each in result.values() for reply in each))
        return queue.joined([next(replies[partition]) for partition in places])

    async def _run_parts(self, parts: dict[int, PartitionPart]) -> Mapping[int, list[Reply]] | Reply:
        """Run the parts of a transaction across partitions, as `ports.Transactions` does."""
        store, session = self._server.store, self._session
        tracked = self._begin_tracking(parts)
        try:
            result = await store.transactions.run(session.keyspace, parts, self._server.seen_of(session))
        except Exception as error:  # noqa: BLE001  every request gets an answer, see RespServer.failure
            result = self._failure(error)
        self._end_tracking(parts, tracked)
        return result

    def _is_apart(self, request: Request) -> bool:
        """Return whether an MSETNX has keys of several partitions, and can be a transaction across them."""
        if not self._server.store.transactions.available or is_local(self._server, self._session):
            return False
        return msetnx.refusal(request) is None and len(set(map(self._segment().partition, request[1::2]))) > 1

    async def _msetnx(self, request: Request) -> Reply:
        parts = msetnx.parts_of(request, self._session.keyspace, self._segment().partition)
        result = await self._run_parts(parts)
        return msetnx.joined([[] if isinstance(result, Mapping) else result])

    def _begin_tracking(self, parts: dict[int, PartitionPart]) -> dict[int, list[bytes]]:
        """Have owners remember what the parts read, and return these keys."""
        tracking, tracked = self._session.tracking, dict[int, list[bytes]]()
        if tracking is None:
            return tracked
        for partition, part in parts.items():
            keys = tracking.keys(part.commands) if self._tracks else []
            track = tracking.begin(self._server.store, partition, keys)
            if track is not None:
                parts[partition], tracked[partition] = part._replace(track=track), keys
        return tracked

    def _end_tracking(self, parts: dict[int, PartitionPart], tracked: dict[int, list[bytes]]) -> None:
        tracking = self._session.tracking
        for partition, keys in tracked.items():
            track = parts[partition].track
            if tracking is not None and track is not None:
                self._server.store.near_caches.end(tracking, partition, keys, track)

    async def _seen(self, name: bytes, request: Request) -> None:
        """Run a request, and compare the watched keys among its own as they are at that moment."""
        transaction, keyspace = self._session.transaction, self._session.keyspace
        keys = [key for key in keys_of(name, request) if (keyspace, key) in transaction.watches]
        if name == MSETNX and self._is_apart(request):
            reply = await self._msetnx(request)
            if keys and reply != 0:
                transaction.touch()
            self._encode(reply)
            return
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
        """Return the reply to a request with very many keys, which runs piece by piece; or to MSETNX."""
        if name == MSETNX and self._is_apart(request):
            return await self._msetnx(request)
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
        if is_local(self._server, self._session):
            return self._take(call, await self._ask_local(commands, room), results)
        store, tracking = self._server.store, self._session.tracking
        keys = [] if tracking is None or not self._tracks else tracking.keys(commands)
        track = None if tracking is None else tracking.begin(store, partition, keys)
        try:
            seen, keyspace = self._server.seen_of(self._session), self._session.keyspace
            written = self._server.written_of(self._session)
            replies = await store.execute(
                partition, keyspace, commands, room, seen, track=track, written=written
            )
        except Exception as error:  # noqa: BLE001  every request gets an answer, see RespServer.failure
            replies = [self._failure(error)] * len(call)
        if tracking is not None and track is not None:
            store.near_caches.end(tracking, partition, keys, track)
        return self._take(call, replies, results)

    def _take(self, call: list[int], replies: list[Reply], results: list[Reply]) -> int:
        for index, reply in zip(call, replies, strict=False):
            results[index] = reply
        self._hold(sum(map(_size, replies)))
        return len(replies)

    async def _ask_local(self, commands: Sequence[Request], room: int) -> list[Reply]:
        try:
            return await ask_local(self._server, self._session, commands, room, tracks=self._tracks)
        except Exception as error:  # noqa: BLE001  every request gets an answer, see RespServer.failure
            return [self._failure(error)] * len(commands)

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
        partition = segment.partition(segment.key(place))
        waiting = [p for p in segment.groups[partition] if p >= place and results[p] is LATER]
        call = next(iter(segment.calls(waiting)))
        room = REPLY_BYTES_MAX + limits.REPLY_BYTES
        try:
            await self._server.replies.take(room, self._wait_seconds)
        except Unavailable as error:
            self._wait_seconds = 0.0
            results[place] = self._failure(error)
            return
        try:
            ran = await self._ask(segment, partition, call, results, REPLY_BYTES_MAX)
        finally:
            self._server.replies.add(-room)
        self._check()
        if not ran:
            text = f"partition {partition}: its owner returned no reply despite room for any"
            results[place] = self._failure(Corrupt(text))

    def _encode_missing_array(self) -> None:
        if self._is_sent(None):
            self._out.append(b"_\r\n" if self._session.resp3 else b"*-1\r\n")

    def _is_sent(self, reply: Answer) -> bool:
        """Return whether the client wants this reply; one that it does not want is counted.

        Confirmations of subscriptions are always sent, as in Redis.
        """
        return not self._session.withholds() or isinstance(reply, Push | Several)

    def _encode(self, reply: Answer) -> None:
        if not self._is_sent(reply):
            return
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
