"""Server side of RESP: parses requests (arrays of bulk strings, and inline ones) and encodes replies.

The parser is not hiredis, which is made for replies: a few bytes of a client could make it allocate an array
of 2**32 elements, and it accepts types that requests must not contain. Here each length is checked before it
is used.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from stele.core.kv.commands import OK, VALUE_BYTES_MAX, Failure, Reply, Simple, text_of
from stele.native import compiled
from stele.wire.inline import split_words

ARGUMENTS_MAX = 128 * 1024
REQUEST_BYTES_MAX = 64 * 1024 * 1024
INLINE_BYTES_MAX = 64 * 1024
HEADER_BYTES_MAX = 24

ARGUMENT_BYTES = 64
"""Bytes of memory that Python uses per argument, beyond its content."""

SPLIT_BYTES_MAX = 512 * 1024
"""Largest input that is split at every line end in one go."""

# Common headers are looked up instead of parsed.
_BULKS = {b"$%d\r\n" % length: length for length in range(4096)}
_ARRAYS = {b"*%d\r\n" % count: count for count in range(64)}
_COUNTS = {b"*%d" % count: count for count in range(1, 64)}
_LENGTHS = [b"$%d" % length for length in range(4096)]

Request = list[bytes]
Split = Callable[[bytes, list[Request]], int]


AUTHENTICATING = frozenset({b"AUTH", b"HELLO"})
"""Requests after which other limits may hold."""


class RequestReader:
    """Converts the bytes of one connection into requests. Once `error` is set, it reads nothing more.

    `arguments` counts all arguments read so far. An incomplete request is kept as the received chunks, which
    are joined once when enough bytes are there, so a large value is copied once. `buffered_bytes` is the size
    of that; without Python's overhead per argument it stays below `REQUEST_BYTES_MAX`. `stopped`: what comes
    after an AUTH is kept, and read by `go_on` with the limits of then. `split` takes common requests, as
    `split_plainly` does; whatever it leaves is read here.
    """

    def __init__(self, split: Split | None = None) -> None:
        self._split = split or _split
        self.error: str | None = None
        self.stopped = False
        self.arguments = 0
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = 0
        self._args: Request = []
        self._args_bytes = 0
        self._missing = 0
        self._limited = False
        self.limit()

    def limit(self, arguments: int = ARGUMENTS_MAX, argument_bytes: int = VALUE_BYTES_MAX) -> None:
        """Accept requests of at most so many arguments, and bytes of each.

        With fewer arguments than usual it stops after each request that may end that.
        """
        self._arguments_max, self._argument_bytes_max = arguments, argument_bytes
        self._limited = arguments < ARGUMENTS_MAX

    @property
    def buffered_bytes(self) -> int:
        """Return the memory held by an incomplete request, including Python's overhead per argument."""
        return self._have + self._args_bytes + ARGUMENT_BYTES * len(self._args)

    def feed(self, data: bytes) -> list[Request]:
        """Return the requests that are complete now, in order. Check `error` afterwards."""
        if self.error is not None:
            return []
        if self.stopped:
            self._chunks.append(data)
            self._have += len(data)
            return []
        if self._chunks:
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            data = b"".join(self._chunks)
            self._chunks.clear()
        requests: list[Request] = []
        begun = len(self._args)
        try:
            slowly = self._missing or self._limited or len(data) > SPLIT_BYTES_MAX
            rest = 0 if slowly else self._split(data, requests)
            rest = self._parse(data, rest, requests)
        except _GarbageError as garbage:
            self.error = f"Protocol error: {garbage}"
            rest = len(data)
        self.arguments += sum(map(len, requests)) + len(self._args) - begun
        self._have = len(data) - rest
        if self._have:
            self._chunks.append(data[rest:] if rest else data)
        return requests

    def go_on(self) -> list[Request]:
        """Return the requests after the one at which it stopped."""
        self.stopped = False
        return self.feed(b"")

    def _parse(self, data: bytes, at: int, requests: list[Request]) -> int:
        """Parse all complete requests; return where the incomplete part begins, and set `_need`."""
        size = len(data)
        while at < size and not self.stopped:
            if not self._missing:
                begin, at = at, self._header(data, at)
                if at == begin:
                    return at
                if not self._missing:
                    if self._args:
                        requests.append(self._take())
                    continue
            at = self._bulks(data, at)
            if self._missing:
                return at
            requests.append(self._take())
        self._need = 0
        return at

    def _take(self) -> Request:
        args, self._args, self._args_bytes = self._args, [], 0
        self.stopped = self._limited and args[0].upper() in AUTHENTICATING
        return args

    def _header(self, data: bytes, at: int) -> int:
        """Read `*<count>`, or a whole inline request into `_args`; return `at` itself when incomplete."""
        after = data.find(b"\n", at, at + HEADER_BYTES_MAX) + 1
        count = _ARRAYS.get(data[at:after], 0)
        if count:
            self._check_count(count)
            self._missing = count
            return after
        if data[at] != 0x2A:
            return self._inline(data, at)
        count, after = _length(data, at, b"*", "multibulk")
        if after == at:
            self._need = 0
            return at
        self._check_count(count)
        self._missing = max(count, 0)
        return after

    def _check_count(self, count: int) -> None:
        if count > ARGUMENTS_MAX:
            raise _GarbageError(
                f"invalid multibulk length: {count} exceeds the limit of {ARGUMENTS_MAX} arguments"
            )
        if count > self._arguments_max:
            raise _GarbageError("unauthenticated multibulk length")

    def _inline(self, data: bytes, at: int) -> int:
        first = data[at : at + 1]
        if not (first.isalpha() or first in b"\r\n "):
            raise _GarbageError(f"expected '*', got {_shown(first)}")
        end = data.find(b"\n", at)
        most = min(INLINE_BYTES_MAX, self._argument_bytes_max)
        if (len(data) if end < 0 else end) - at > most:
            raise _GarbageError(f"too big inline request: more than {most} bytes")
        if end < 0:
            self._need = 0
            return at
        line = data[at:end].rstrip(b"\r")
        if not (line.isascii() and line.decode().isprintable()):
            raise _GarbageError("an inline request must be printable ASCII")
        words = split_words(line)
        if words is None:
            raise _GarbageError("unbalanced quotes in request")
        self._check_count(len(words))
        self._args = words
        if self._args and self._args[0].upper() in (b"POST", b"HOST:"):
            raise _GarbageError("this port speaks RESP, not HTTP")
        return end + 1

    def _bulks(self, data: bytes, at: int) -> int:
        """Read `$<length>` and bytes until the request is complete or the data ends."""
        args, size = self._args, len(data)
        while self._missing:
            begin = data.find(b"\n", at, at + HEADER_BYTES_MAX) + 1
            length = _BULKS.get(data[at:begin])
            if length is None:
                length, begin = _length(data, at, b"$", "bulk")
                if begin == at:
                    self._need = 0
                    return at
            self._check(length)
            end = begin + length
            if end + 2 > size:
                self._need = end + 2 - at
                return at
            if data[end : end + 2] != b"\r\n":
                raise _GarbageError(f"a bulk string of {length} bytes does not end with CRLF")
            args.append(data[begin:end])
            self._args_bytes += length
            self._missing -= 1
            at = end + 2
        return at

    def _check(self, length: int) -> None:
        if not 0 <= length <= VALUE_BYTES_MAX:
            raise _GarbageError(f"invalid bulk length: {length}, expected 0 to {VALUE_BYTES_MAX} bytes")
        if length > self._argument_bytes_max:
            raise _GarbageError("unauthenticated bulk length")
        if self._args_bytes + length > REQUEST_BYTES_MAX:
            raise _GarbageError(f"request of more than {REQUEST_BYTES_MAX} bytes: split it")


def split_plainly(data: bytes, requests: list[Request]) -> int:
    """Take leading requests without line ends in arguments; return where the rest begins.

    The lines of such a request are headers and arguments in turn. A request is taken only if each header is
    the one that its argument requires, so the result equals that of `_parse`.
    """
    lines = data.split(b"\r\n")
    at, last = 0, len(lines) - 1
    try:
        while at < last:
            end = at + 1 + 2 * _COUNTS[lines[at]]
            args = lines[at + 2 : end : 2]
            if end > last or [_LENGTHS[len(arg)] for arg in args] != lines[at + 1 : end : 2]:
                break
            requests.append(args)
            at = end
    except LookupError:
        pass  # Not a common header.
    if at == last and not lines[last]:
        return len(data)
    return len(data) - sum(map(len, lines[at:])) - 2 * (last - at)


_split = split_plainly if compiled is None else compiled.split


class _GarbageError(Exception):
    """The bytes are not a request; the connection has to be closed."""


def _length(data: bytes, at: int, mark: bytes, kind: str) -> tuple[int, int]:
    """Return (number, index after its CRLF) of a header, or index `at` when it is incomplete."""
    if data[at : at + 1] not in (mark, b""):
        raise _GarbageError(f"expected '{mark.decode()}', got {_shown(data[at : at + 1])}")
    end = data.find(b"\r\n", at, at + HEADER_BYTES_MAX)
    if end < 0:
        if len(data) - at >= HEADER_BYTES_MAX:
            raise _GarbageError(f"too big {kind} count string")
        return 0, at
    digits = data[at + 1 : end]
    if not (digits.isdigit() or (digits[:1] == b"-" and digits[1:].isdigit())):
        raise _GarbageError(f"invalid {kind} length: {_shown(digits)}")
    return int(digits), end + 2


def _shown(raw: bytes) -> str:
    return f"'{text_of(raw)}'" if raw.isascii() and raw.decode().isprintable() else f"0x{raw[:8].hex()}"


@dataclass(frozen=True, slots=True)
class Push:
    """A message that is no reply: RESP3's own type, an array in RESP2."""

    items: Sequence["Answer"]


@dataclass(frozen=True, slots=True)
class Several:
    """All that one request is answered with, when that is not one reply."""

    replies: Sequence["Answer"]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A reply that is encoded already."""

    data: bytes


@dataclass(frozen=True, slots=True)
class SetOf:
    """Different items: RESP3's own type, an array in RESP2."""

    items: Sequence["Answer"]


Answer = Reply | Mapping[bytes, "Answer"] | Sequence["Answer"] | Push | Several | SetOf | Encoded
"""A reply that may have maps: RESP3's own type, or arrays of keys and values in RESP2."""


def encode_reply(reply: Answer, out: list[bytes], resp3: bool = False) -> None:
    """Append the encoding of one reply to `out`."""
    if type(reply) is bytes:
        out += (b"$%d\r\n" % len(reply), reply, b"\r\n")
    elif reply is None:
        out.append(b"_\r\n" if resp3 else b"$-1\r\n")
    elif isinstance(reply, int):
        out.append(b":%d\r\n" % reply)
    elif isinstance(reply, Simple):
        out.append(b"+%b\r\n" % _line(reply.text))
    elif isinstance(reply, Failure):
        out.append(b"-%b\r\n" % _line(f"{reply.code} {reply.text}"))
    elif isinstance(reply, Encoded):
        out.append(reply.data)
    else:
        _encode_items(reply, out, resp3)


def _encode_items(reply: Answer, out: list[bytes], resp3: bool) -> None:
    """Append the encoding of a reply with replies in it."""
    items: Iterable[Answer]
    if isinstance(reply, list):
        head, items = b"*%d\r\n" % len(reply), reply
    elif isinstance(reply, dict):
        head = b"%%%d\r\n" % len(reply) if resp3 else b"*%d\r\n" % (2 * len(reply))
        items = chain.from_iterable(reply.items())
    elif isinstance(reply, Push):
        head, items = b"%b%d\r\n" % (b">" if resp3 else b"*", len(reply.items)), reply.items
    elif isinstance(reply, SetOf):
        head, items = b"%b%d\r\n" % (b"~" if resp3 else b"*", len(reply.items)), reply.items
    elif isinstance(reply, Several):
        head, items = b"", reply.replies
    else:
        raise TypeError(f"not a reply: {type(reply).__name__}")
    out.append(head)
    for item in items:
        encode_reply(item, out, resp3)


def encode_push(items: Sequence[Answer], resp3: bool) -> bytes:
    """Encode a message that is no reply."""
    out: list[bytes] = []
    encode_reply(Push(items), out, resp3)
    return b"".join(out)


def encode_all(replies: list[Reply], resp3: bool) -> bytes:
    """Encode many replies at once."""
    encoded = None if compiled is None else compiled.encode_replies(replies, OK, resp3)
    return encode_plainly(replies, resp3) if encoded is None else encoded


def encode_plainly(replies: list[Reply], resp3: bool) -> bytes:
    out: list[bytes] = []
    for reply in replies:
        if reply is OK:
            out.append(b"+OK\r\n")
        elif type(reply) is bytes:
            out += (b"$%d\r\n" % len(reply), reply, b"\r\n")
        else:
            encode_reply(reply, out, resp3)
    return b"".join(out)


def chunks(parts: list[bytes], size: int) -> Iterator[bytes]:
    """Join parts into chunks of about `size`, without copying longer parts. Empties the list."""
    parts.reverse()
    while parts:
        chunk, chunk_bytes = [parts.pop()], 0
        while parts and (chunk_bytes := chunk_bytes + len(chunk[-1])) < size and len(parts[-1]) < size:
            chunk.append(parts.pop())
        yield chunk[0] if len(chunk) == 1 else b"".join(chunk)


def encode_request(args: Sequence[bytes]) -> bytes:
    """Encode a request as a client sends it."""
    parts = [b"*%d\r\n" % len(args)]
    parts.extend(b"$%d\r\n%b\r\n" % (len(arg), arg) for arg in args)
    return b"".join(parts)


def _line(text: str) -> bytes:
    """Encode one line; a line end in the text would start the next reply."""
    return text.replace("\r", " ").replace("\n", " ").encode("utf-8", "replace")
