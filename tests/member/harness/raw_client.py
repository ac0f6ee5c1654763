"""A client that looks at bytes: what it sends are words, what it gets is everything that comes."""

import asyncio
from itertools import groupby

from stele.wire.resp import encode_request


class Client:
    """Requests as bytes, and everything that comes back."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer
        self._settled = 1000
        self.received = b""

    async def send(self, *words):
        """Send a request, or several with `;` between them, and read all that comes until it is answered."""
        for ends, request in groupby(words, lambda word: word == ";"):
            if not ends:
                self._writer.write(encode_request([word.encode() for word in request]))
        if words == ("QUIT",):
            # A PING after it could have the other side reset the connection, and lose its last reply.
            self.received += await asyncio.wait_for(self._reader.read(), 20)
        else:
            await self.settle()

    async def settle(self, last=b""):
        """Read until a PING is answered, and `last` has come."""
        self._settled += 1
        end = b"=%d=" % self._settled
        self._writer.write(encode_request([b"PING", end]))
        while not (end + b"\r\n" in self.received and last in self.received):
            some = await asyncio.wait_for(self._reader.read(65536), 20)
            if not some:
                return
            self.received += some

    def close(self):
        self._writer.close()
