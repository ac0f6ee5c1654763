"""Clients of a store during a benchmark, as a process that answers one line of JSON to each line of input:

    load BYTES SIZE      every key once, values of SIZE bytes; {"entries", "seconds"}
    live RATE THREADS    from now on RATE reads and RATE writes per second, by so many threads each
    lag                  {"seconds"}: how far the slowest thread is behind its plan
    stats BEGIN END      reads and writes that were due between two moments of the monotonic clock, in ns
    end                  stop; {"errors": {name: count}}
    verify               read every key back; {"checked", "missing", "corrupt", "older"}

Reads and writes are an open loop: each is due at its moment whatever the last one took, so its latency counts
from that moment. A thread writes keys that no other writes; a read must not show less than what was
acknowledged before it. The Java side (`java/`, `Clients`) does the same, and says the course of latencies.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import ssl
import struct
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from math import ceil
from pathlib import Path

import hiredis

TIMEOUT_SECONDS = 30.0
READ_BYTES = 1 << 16
POOL_BYTES = 8 << 20
LOAD_THREADS = 4
LOAD_BATCH = 16
STATS_SECONDS_MAX = 60.0
_HEADER = struct.Struct(">II")


class Values:
    """Values that cannot be compressed, each with its key and version in front."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pool = os.urandom(POOL_BYTES)

    def make(self, key: int, version: int) -> bytes:
        """The one value of a key at a version."""
        begin = (key * 2_654_435_761 + version * 40_503) % (POOL_BYTES - self.size)
        return _HEADER.pack(key, version) + self._pool[begin : begin + self.size - _HEADER.size]


def version_in(value: bytes, key: int) -> int:
    """The version that a value says it has; -1 when it is not one of this key."""
    if len(value) < _HEADER.size:
        return -1
    found, version = _HEADER.unpack_from(value)
    return version if found == key else -1


@dataclass(frozen=True, slots=True)
class Login:
    """What a closed cluster asks of clients: TLS, and the password of the user `default`."""

    context: ssl.SSLContext
    password: bytes

    @classmethod
    def of(cls, ca: Path, password: Path) -> Login:
        """Read the files of the CA and of the password."""
        context = ssl.create_default_context(cafile=ca)
        # Members are known by their addresses here, and trusted for their CA.
        context.check_hostname = False
        return cls(context, password.read_bytes())


class Connection:
    """One connection to one member; raises OSError when it is lost, RuntimeError for an error reply."""

    def __init__(self, address: tuple[str, int], login: Login | None = None) -> None:
        self._socket = socket.create_connection(address, TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()
        if login is not None:
            self._socket = login.context.wrap_socket(self._socket)
            self.ask([(b"AUTH", login.password)])

    def ask(self, commands: Sequence[tuple[bytes, ...]]) -> list[bytes | None]:
        """Replies in order."""
        self._socket.sendall(b"".join(map(_pack, commands)))
        return [self._reply() for _ in commands]

    def _reply(self) -> bytes | None:
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise ConnectionResetError("the member closed the connection")
            self._reader.feed(data)
        if isinstance(reply, Exception):
            raise RuntimeError(str(reply))
        return reply  # type: ignore[no-any-return]

    def close(self) -> None:
        self._socket.close()


def _pack(command: tuple[bytes, ...]) -> bytes:
    head = b"*%d\r\n" % len(command)
    return head + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in command)


class Way:
    """To the members in turn, as through a Service; for one thread."""

    def __init__(
        self, addresses: Sequence[tuple[str, int]], first: int = 0, login: Login | None = None
    ) -> None:
        self._addresses, self._login = addresses, login
        self._open: dict[int, Connection] = {}
        self._turns = count(first)

    def ask(self, *commands: tuple[bytes, ...]) -> list[bytes | None]:
        """Ask the next member; a connection that failed is not used again."""
        turn = next(self._turns) % len(self._addresses)
        try:
            if turn not in self._open:
                self._open[turn] = Connection(self._addresses[turn], self._login)
            return self._open[turn].ask(commands)
        except OSError:
            if turn in self._open:
                self._open.pop(turn).close()
            raise

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()


@dataclass
class Samples:
    """When operations of one thread were due, begun and ended (ns); an end of -1: it failed."""

    due: array[int] = field(default_factory=lambda: array("q"))
    begun: array[int] = field(default_factory=lambda: array("q"))
    ended: array[int] = field(default_factory=lambda: array("q"))

    def add(self, due: int, begun: int, ended: int) -> None:
        self.due.append(due)
        self.begun.append(begun)
        self.ended.append(ended)  # last: whoever reads goes by its length

    def last(self) -> int:
        return self.due[len(self.ended) - 1] if self.ended else 0


def summary(samples: Sequence[Samples], begin: int, end: int) -> dict[str, float | int]:
    """Latencies from the due moment in seconds, and the longest single call, of what was due in between.

    `answered` counts what was answered in between, whenever it was due.
    """
    latencies: list[int] = []
    longest = failed = answered = 0
    for each in samples:
        for place in range(len(each.ended)):
            answered += begin <= each.ended[place] < end
            if not begin <= each.due[place] < end:
                continue
            if each.ended[place] < 0:
                failed += 1
                continue
            latencies.append(each.ended[place] - each.due[place])
            longest = max(longest, each.ended[place] - each.begun[place])
    latencies.sort()

    def at(share: float) -> float:
        return latencies[max(0, ceil(share * len(latencies)) - 1)] / 1e9 if latencies else 0.0

    return {
        "count": len(latencies),
        "failed": failed,
        "answered": answered,
        "p50_seconds": at(0.5),
        "p99_seconds": at(0.99),
        "p999_seconds": at(0.999),
        "max_seconds": at(1.0),
        "call_max_seconds": longest / 1e9,
    }


class Clients:
    """Everything that the lines of input ask for."""

    def __init__(self, addresses: Sequence[tuple[str, int]], login: Login | None = None) -> None:
        self._addresses, self._login = addresses, login
        self._values = Values(_HEADER.size)
        self._tried, self._acked = array("l"), array("l")
        self._samples: dict[str, list[Samples]] = {"get": [], "set": []}
        self._errors: Counter[str] = Counter()
        self._threads: list[threading.Thread] = []
        self._live = False
        self._stale = self._missed = 0

    def load(self, data_bytes: int, size: int) -> dict[str, float | int]:
        self._values = Values(size)
        keys = data_bytes // size
        self._tried, self._acked = array("l", bytes(8 * keys)), array("l", bytes(8 * keys))
        begin = time.monotonic()
        self._shared(keys, self._load_some)
        return {"entries": keys, "seconds": time.monotonic() - begin}

    def _shared(self, keys: int, work: Callable[[Way, range], object]) -> list[object]:
        """Do the work on all keys, a batch at a time, in a few threads."""
        ways: dict[int, Way] = {}

        def some(first: int) -> object:
            way = ways.setdefault(threading.get_ident(), Way(self._addresses, login=self._login))
            return work(way, range(first, min(keys, first + LOAD_BATCH)))

        try:
            with ThreadPoolExecutor(LOAD_THREADS) as pool:
                return list(pool.map(some, range(0, keys, LOAD_BATCH)))
        finally:
            for way in ways.values():
                way.close()

    def _load_some(self, way: Way, keys: range) -> None:
        way.ask(*((b"SET", b"k%d" % key, self._values.make(key, 0)) for key in keys))

    def live(self, rate: int, threads: int) -> dict[str, object]:
        self._live = True
        for number in range(threads):
            for kind, work in (("get", self._get), ("set", self._set)):
                samples = Samples()
                self._samples[kind].append(samples)
                told = (rate / threads, (number, threads), samples, work)
                self._threads.append(threading.Thread(target=self._paced, args=told, daemon=True))
        for thread in self._threads:
            thread.start()
        return {}

    def _paced(
        self, rate: float, share: tuple[int, int], samples: Samples, work: Callable[[Way, int], None]
    ) -> None:
        number, threads = share
        way, chance = Way(self._addresses, number, self._login), random.Random(number)
        keys, gap = len(self._acked) // threads, int(1e9 / rate)
        due = time.monotonic_ns() + gap * number // threads
        while self._live:
            due += gap
            wait = due - time.monotonic_ns()
            if wait > 0:
                time.sleep(wait / 1e9)
            begun = time.monotonic_ns()
            try:
                work(way, chance.randrange(keys) * threads + number)
                samples.add(due, begun, time.monotonic_ns())
            except (OSError, RuntimeError) as error:
                self._errors[str(error)[:80]] += 1
                samples.add(due, begun, -1)
        way.close()

    def _get(self, way: Way, key: int) -> None:
        floor = self._acked[key]
        (value,) = way.ask((b"GET", b"k%d" % key))
        if value is None:
            self._missed += 1
        elif version_in(value, key) < floor:
            self._stale += 1

    def _set(self, way: Way, key: int) -> None:
        self._tried[key] += 1
        version = self._tried[key]
        way.ask((b"SET", b"k%d" % key, self._values.make(key, version)))
        self._acked[key] = version

    def lag(self) -> dict[str, float]:
        oldest = min((each.last() for kind in self._samples.values() for each in kind), default=0)
        return {"seconds": (time.monotonic_ns() - oldest) / 1e9}

    def stats(self, begin: int, end: int) -> dict[str, object]:
        """Waits until every operation that was due has ended."""
        limit = time.monotonic() + STATS_SECONDS_MAX
        waited = [each for kind in self._samples.values() for each in kind]
        while self._live and time.monotonic() < limit and any(each.last() < end for each in waited):
            time.sleep(0.01)
        return {kind: summary(samples, begin, end) for kind, samples in self._samples.items()}

    def end(self) -> dict[str, object]:
        self._live = False
        for thread in self._threads:
            thread.join(TIMEOUT_SECONDS)
        return {"errors": dict(self._errors), "stale_reads": self._stale, "missing_reads": self._missed}

    def verify(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for each in self._shared(len(self._acked), self._verify_some):
            assert isinstance(each, Counter)
            found += each
        return {"checked": len(self._acked)} | {name: found[name] for name in ("missing", "corrupt", "older")}

    def _verify_some(self, way: Way, keys: range) -> Counter[str]:
        found: Counter[str] = Counter()
        replies = way.ask(*((b"GET", b"k%d" % key) for key in keys))
        for key, value in zip(keys, replies, strict=True):
            found[self._judge(key, value)] += 1
        return found

    def _judge(self, key: int, value: bytes | None) -> str:
        if value is None:
            return "missing"
        version = version_in(value, key)
        if not 0 <= version <= self._tried[key] or value != self._values.make(key, version):
            return "corrupt"
        return "older" if version < self._acked[key] else "right"

    def answer(self, words: Sequence[str]) -> dict[str, object]:
        """Do what one line asks."""
        known: dict[str, Callable[..., object]] = {
            "load": self.load, "live": self.live, "lag": self.lag, "stats": self.stats, "end": self.end,
            "verify": self.verify,
        }  # fmt: skip
        try:
            told = known[words[0]](*map(int, words[1:]))
        except Exception as error:  # noqa: BLE001  whatever it is, the other side has to know
            return {"error": f"{type(error).__name__}: {error}"}
        assert isinstance(told, dict)
        return told


def main(arguments: Sequence[str]) -> int:
    """Serve standard input; the arguments are HOST:PORT of members, and what these ask for."""
    parser = argparse.ArgumentParser(prog="copy_load")
    parser.add_argument("--login", nargs=2, type=Path, metavar=("CA", "PASSWORD"), help="both are files")
    parser.add_argument("members", nargs="+", metavar="HOST:PORT")
    given = parser.parse_args(arguments)
    pairs = [each.rpartition(":") for each in given.members]
    login = None if given.login is None else Login.of(*given.login)
    clients = Clients([(host, int(port)) for host, _, port in pairs], login)
    for line in sys.stdin:
        print(json.dumps(clients.answer(line.split())), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
