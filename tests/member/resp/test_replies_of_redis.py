"""Single-key commands: the replies of redis-server to the same commands in the same order."""

import time

import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from stele.core.kv.commands import ARITIES, VALUE_BYTES_MAX, Delete, Failure, Reply, Simple, Stored, evaluate
from stele.core.kv.long_double import add
from stele.member.resp.multi_key import MANY_KEYS

KEY = b"k"
FAR_MS = b"99999999999999"
NOT_COMPARED = {b"TTL", b"PTTL", b"EXPIRETIME", b"PEXPIRETIME", b"EXPIRE", b"PEXPIRE", b"PSETEX", *MANY_KEYS}
"""Those whose replies depend on the clock, and those that take several keys."""
_numbers = st.integers(-12, 12).map(b"%d".__mod__) | st.sampled_from(
    [FAR_MS, b"", b"01", b"+1", b" 1", b"1.5", b"-0", b"9223372036854775807", b"-9223372036854775808", b"1e3"]
)
_words = st.sampled_from(
    [
        b"NX",
        b"xx",
        b"GET",
        b"KEEPTTL",
        b"persist",
        b"EX",
        b"px",
        b"EXAT",
        b"PXAT",
        b"GT",
        b"lt",
        b"hello",
        b"7",
    ]
)
_commands = st.tuples(
    st.sampled_from(sorted(set(ARITIES) - NOT_COMPARED)), st.lists(_numbers | _words, max_size=5)
)
_floats = (
    st.sampled_from(["nan", "inf", "-Infinity"])
    | st.floats(-1e300, 1e300).map(repr)
    | st.decimals(allow_nan=False, allow_infinity=True, places=9).map(str)
)
_texts = _floats | st.from_regex(r"[+-]?[0-9]{0,25}\.?[0-9]{0,25}(e[+-]?[0-9]{1,2})?", fullmatch=True)


class Entry:
    """The entry of one key, changed as the owner of its partition does."""

    def __init__(self) -> None:
        self.stored: Stored | None = None

    def run(self, args: list[bytes]) -> object:
        made = evaluate(args, self.stored, int(time.time() * 1000))
        if isinstance(made.op, Delete):
            self.stored = None
        elif made.op is not None:
            self.stored = made.op.value, made.op.expire_at_ms
        return shown(made.reply)


def shown(reply: Reply) -> object:
    if isinstance(reply, Failure):
        return f"{reply.code} {reply.text}"
    return reply.text.encode() if isinstance(reply, Simple) else reply


def asked(client: redis.Redis, args: list[bytes]) -> object:
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command(*args)
        return connection.read_response()
    except redis.ResponseError as error:
        text = str(error).replace("(proto-max-bulk-len)", f"({VALUE_BYTES_MAX} bytes)")
        return text if text.startswith("ERR ") else f"ERR {text}"
    finally:
        client.connection_pool.release(connection)


@settings(max_examples=300)
@given(st.lists(_commands, min_size=1, max_size=6))
def test_replies_are_those_of_redis(reference, commands):
    entry = Entry()
    with redis.Redis(port=reference, retry_on_error=[redis.ConnectionError]) as client:
        client.delete(KEY)
        for name, rest in commands:
            args = [name, KEY, *rest]
            assert entry.run(args) == asked(client, args), (commands, args)


@settings(max_examples=300)
@given(_texts, _texts)
def test_sums_have_the_digits_of_redis(reference, left, right):
    with redis.Redis(port=reference, retry_on_error=[redis.ConnectionError]) as client:
        client.set(KEY, left)
        wanted = asked(client, [b"INCRBYFLOAT", KEY, right.encode()])
    try:
        found: object = add(left.encode(), right.encode())
    except ValueError:
        found = "ERR value is not a valid float"
    except OverflowError:
        found = "ERR increment would produce NaN or Infinity"
    assert found == wanted
