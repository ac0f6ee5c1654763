"""Users and rights at the ports of clients: replies of redis-server with the same users, and the rest."""

import asyncio
import hashlib
import tracemalloc
from collections import Counter

import pytest
import redis

from stele.core.control.member_settings import ClientAuth
from stele.core.kv.acl import STEPS_AT_ONCE
from stele.core.kv.command_categories import COMMANDS
from stele.core.kv.glob import Glob
from stele.member.resp.access import Access, accounts_of
from stele.member.resp.failed_logins import FAILURES_AT_ONCE, SECONDS_PER_FAILURE
from stele.member.resp.limits import GUEST_HELD_BYTES_MAX, RespServerLimits
from stele.member.resp.passwords import NO_PASSWORDS, SCRYPT_AT_ONCE, SCRYPT_WAITING_MAX
from stele.member.resp.server import RespServer
from stele.member.resp.session_commands import OFFERED
from stele.member.resp.users_file import UsersFile
from stele.wire.resp import encode_request
from stele.wire.users import Scrypt, UserEntry, chosen_hash, encode_users, generated_hash
from tests.member.harness.reference import redis_server

DEFAULT = UserEntry("default", (generated_hash(b"secret"),), ("+@all", "~*", "&*"))
ALICE = UserEntry(
    "alice",
    (generated_hash(b"old"), generated_hash(b"new")),
    ("+@all", "-@dangerous", "~orders:*", "%R~cfg:*", "&news:*"),
)
GONE = UserEntry("gone", (generated_hash(b"pw"),), ("+@all", "~*"), active=False)
SHOP = UserEntry("shop", (generated_hash(b"pw"),), ("+@all", "~*", "&*"), ("shop", "cart"))
CHOSEN = UserEntry("person", (chosen_hash(b"hunter2", b"0" * 16),), ("+@all", "~*", "&*"))


SUBCOMMANDS = [name.split("|") for name in sorted(COMMANDS) if "|" in name]


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def access(clock):
    access = Access(clock)
    use(access, DEFAULT, ALICE, GONE, SHOP)
    yield access
    access.checker.close()


@pytest.fixture
async def server(store, access):
    server = RespServer(store, RespServerLimits(guest_seconds_max=60), access=access)
    await server.listen("127.0.0.1", 0)
    await server.listen_cluster("127.0.0.1", 0)
    yield server
    await server.close()


@pytest.fixture(scope="module")
def users_of_redis(reference):
    with redis.Redis(port=reference) as client:
        for user in (ALICE, GONE):
            passwords = [f"#{each.partition(':')[2]}" for each in user.passwords]
            state = "on" if user.active else "off"
            client.execute_command("ACL SETUSER", user.name, "reset", state, *passwords, *user.rules)
        client.execute_command("ACL SETUSER", "default", "resetpass", ">secret")
    yield reference
    with redis.Redis(port=reference, password="secret") as client:
        client.execute_command("ACL SETUSER", "default", "nopass")


_writers = []


async def connected(port):
    """A connection that ends with the test."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    _writers.append(writer)
    return reader, writer


@pytest.fixture(autouse=True)
async def _closed():
    yield
    while _writers:
        _writers.pop().close()
    await asyncio.sleep(0)


def use(access, *users, level=ClientAuth.REQUIRED):
    access.adopt(accounts_of(users, access.users), level, access.file)


async def played(port, *lines):
    """All that comes back for some requests and a QUIT."""
    reader, writer = await connected(port)
    requests = [[word.encode() for word in line.split()] for line in (*lines, "QUIT")]
    writer.write(b"".join(map(encode_request, requests)))
    async with asyncio.timeout(20):
        received = await reader.read(-1)
    writer.close()
    return received


async def until(done):
    async with asyncio.timeout(5):
        while not done():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def ask(stream, line):
    reader, writer = stream
    writer.write(encode_request([word.encode() for word in line.split()]))
    async with asyncio.timeout(20):
        return (await reader.readline()).decode().strip()


async def opened(port, login="AUTH alice new"):
    stream = await connected(port)
    assert await ask(stream, login) == "+OK"
    return stream


SCRIPTS = [
    ["GET a", "SET a 1", "PING", "INFO", "MULTI", "EXEC", "SUBSCRIBE a", "ACL WHOAMI", "CLIENT ID"],
    [
        "HELLO",
        "HELLO 3",
        "HELLO 3 AUTH alice wrong",
        "HELLO 3 AUTH nobody x SETNAME a",
    ],
    ["AUTH wrong", "AUTH alice wrong", "AUTH nobody x", "AUTH gone pw", "AUTH a b c", "AUTH"],
    ["AUTH secret", "ACL WHOAMI", "GET a", "RESET", "GET a", "AUTH default secret", "GET a"],
    ["AUTH alice old", "ACL WHOAMI", "GET orders:1", "SET orders:1 x", "GET orders:1", "DEL orders:1"],
    ["AUTH alice new", "GET other", "GET cfg:1", "SET cfg:1 x", "MGET orders:1 other", "MSET orders:1 a b c"],
    ["AUTH alice new", "FLUSHALL", "CONFIG GET x", "CLIENT LIST", "INFO", "ACL LIST", "ACL WHOAMI"],
    ["AUTH alice new", "NOSUCH a", "GET", "CLIENT NOSUCH", "MGET", "SET other", "CLIENT GETNAME"],
    ["AUTH alice new", "PUBLISH news:1 x", "PUBLISH other x", "SPUBLISH other x", "PSUBSCRIBE news:1"],
    ["AUTH alice new", "SUBSCRIBE other", "SSUBSCRIBE other", "PSUBSCRIBE *", "PSUBSCRIBE news:*"],
    ["AUTH alice new", "MULTI", "SET orders:1 1", "GET orders:1", "DEL orders:1", "EXEC"],
    ["AUTH alice new", "MULTI", "SET orders:1 1", "GET other", "EXEC", "GET orders:1"],
    ["AUTH alice new", "MULTI", "SUBSCRIBE other", "EXEC", "WATCH cfg:1 orders:1", "WATCH other"],
    ["AUTH alice new", "AUTH alice wrong", "ACL WHOAMI", "RESET", "ACL WHOAMI", "QUIT", "PING"],
    [
        "AUTH secret",
        "ACL DRYRUN alice GET other",
        "ACL DRYRUN alice GET cfg:1",
        "ACL DRYRUN alice CLIENT LIST",
    ],
    ["AUTH secret", "ACL DRYRUN nobody GET a", "ACL DRYRUN alice NOSUCH", "ACL DRYRUN alice PUBLISH a b"],
    ["AUTH secret", "ACL USERS", "ACL CAT transaction", "ACL CAT nosuch", "ACL NOSUCH", "ACL GETUSER nobody"],
]


@pytest.mark.parametrize("lines", SCRIPTS)
async def test_replies_are_those_of_redis(server, access, users_of_redis, lines):
    use(access, DEFAULT, ALICE, GONE)
    ours, theirs = await played(server.port, *lines), await played(users_of_redis, *lines)
    assert sorted(ours.split(b"\r\n")) == sorted(theirs.split(b"\r\n"))  # Sets have no order.
    if "ACL CAT transaction" not in lines:
        assert ours == theirs


async def test_without_the_level_everything_is_as_in_redis_without_passwords(server, access):
    use(access, level=ClientAuth.OFF)
    lines = [
        "AUTH x",
        "AUTH default x",
        "AUTH nobody x",
        "HELLO 2 AUTH nobody x",
        "ACL WHOAMI",
        "PING",
        "GET a",
    ]
    lines += ["ACL LIST", "ACL USERS", "CONFIG SET x y", "AUTH default y", "ACL LOG nosuch"]
    with redis_server() as port:
        ours, theirs = await played(server.port, *lines), await played(port, *lines)
    assert ours.partition(b"CONFIG SET")[0] == theirs.partition(b"CONFIG SET")[0]


async def test_users_may_log_in_before_they_must(server, access):
    use(access, DEFAULT, ALICE, level=ClientAuth.OFF)
    anybody = await connected(server.port)
    assert await ask(anybody, "SET a 1") == "+OK"
    alice = await opened(server.port)
    assert (await ask(alice, "GET a")).startswith("-NOPERM")
    assert (await ask(anybody, "AUTH wrong")).startswith("-WRONGPASS")
    use(access, DEFAULT, ALICE)
    assert (await ask(anybody, "GET a")).startswith("-NOAUTH")
    assert await ask(alice, "PING") == "+PONG"
    assert await ask(anybody, "AUTH secret") == "+OK"


async def test_subscribers_that_have_not_authenticated_are_cut_when_they_must(server, access):
    use(access, DEFAULT, level=ClientAuth.OFF)
    reader, writer = await connected(server.port)
    writer.write(encode_request([b"SUBSCRIBE", b"a"]))
    await reader.readuntil(b":1\r\n")
    use(access, DEFAULT)
    async with asyncio.timeout(5):
        assert await reader.read(-1) == b""


async def test_nobody_is_let_in_before_the_master_has_said_whether(server, access):
    use(access, DEFAULT, level=None)
    assert (await played(server.port, "GET a")).startswith(b"-LOADING this member has not been told")
    assert (await played(server.cluster_port, "GET a")).startswith(b"-CLUSTERDOWN this member has not")
    assert (await played(server.port, "AUTH secret", "GET a")).startswith(b"+OK\r\n$-1")
    use(access, level=None)
    access.adopt({}, None, access.file)
    assert (await played(server.port, "GET a")).startswith(b"$-1")


async def test_the_first_keyspace_of_a_user_is_where_it_begins(server):
    stream = await opened(server.port, "AUTH shop pw")
    assert await ask(stream, "SET a 1") == "+OK"
    refused = "-NOPERM this user has no permissions to use the keyspace"
    assert await ask(stream, "SELECT 0") == f"{refused} 'default'"
    assert await ask(stream, "FLUSHALL") == f"{refused} '*'"
    assert await ask(stream, "SELECT cart") == "+OK"
    assert await ask(stream, "GET a") == "$-1"
    assert await ask(stream, "SELECT shop") == "+OK"
    assert await ask(stream, "EXISTS a") == ":1"


async def test_requests_without_rights_pass_neither_way(server, access):
    """The common batch runs the requests before the first that the client has no right to."""
    reader, writer = await opened(server.port)
    keys = ["orders:1", "orders:2", "other", "orders:3"]
    writer.write(b"".join(encode_request([b"SET", key.encode(), b"1"]) for key in keys))
    found = [(await reader.readline())[:7] for _ in keys]
    assert found == [b"+OK\r\n", b"+OK\r\n", b"-NOPERM", b"+OK\r\n"]
    assert access.log.counts["key"] == 1


@pytest.fixture
async def raised():
    """What callbacks of the loop raise: each would end a member."""
    found = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    return found


async def test_requests_in_requests_do_not_end_the_process(server, raised):
    reader, writer = stream = await opened(server.port)
    writer.write(encode_request([b"STELE.ONCE", b"a", b"1"] * 1000))
    refused = b"-ERR 'stele.once' command of 3000 arguments exceeds"
    assert (await asyncio.wait_for(reader.readline(), 20)).startswith(refused)
    assert await ask(stream, "PING") == "+PONG"
    assert raised == []


async def test_a_defect_in_the_check_of_a_request_closes_its_connection_only(server, raised, monkeypatch):
    stream, other = await opened(server.port, "AUTH alice new"), await opened(server.port, "AUTH secret")

    def fail(*_):
        raise RecursionError

    monkeypatch.setattr("stele.member.resp.access.may_run", fail)
    monkeypatch.setattr("stele.member.resp.pipeline.may_run", fail)
    stream[1].write(b"GET orders:1\r\n")
    assert await asyncio.wait_for(stream[0].read(-1), 5) == b""
    assert await ask(other, "PING") == "+PONG"
    assert raised == []


@pytest.mark.parametrize("size", [8000, 12_000])
async def test_checks_that_take_long_let_others_have_turns(server, access, monkeypatch, size):
    """In the common batch, and in the task that gets what takes longer; none is checked in both."""
    checked, turn = [], [0]
    matches = Glob.matches

    def counted(glob, text):
        checked.append((turn[0], len(text)))
        return matches(glob, text)

    async def count_turns():
        while True:
            turn[0] += 1
            await asyncio.sleep(0)

    hard = "~orders*" + "[ab]" * 20 + "*x"
    use(access, DEFAULT, UserEntry("hard", (generated_hash(b"pw"),), ("+@all", hard)))
    reader, writer = await opened(server.port, "AUTH hard pw")
    monkeypatch.setattr(Glob, "matches", counted)
    counting = asyncio.create_task(count_turns())
    key = b"orders" + b"a" * size + b"x"
    writer.write(b"".join(encode_request([b"GET", key]) for _ in range(40)))
    for _ in range(40):
        assert await asyncio.wait_for(reader.readline(), 20) == b"$-1\r\n"
    counting.cancel()
    bytes_of = Counter()
    for when, length in checked:
        bytes_of[when] += length
    assert len(checked) == 40
    assert max(bytes_of.values()) * 20 <= 3 * STEPS_AT_ONCE
    checked.clear()
    writer.write(encode_request([b"MGET", *[b"orders" + b"a" * 20 + b"x"] * 1000]))
    assert await asyncio.wait_for(reader.readline(), 20) == b"*1000\r\n"
    assert len(checked) == 1000


async def test_changed_and_deleted_users_are_cut_and_rotated_passwords_are_not(server, access):
    old, new = await opened(server.port, "AUTH alice old"), await opened(server.port, "AUTH alice new")
    gone, stays = await opened(server.port, "AUTH shop pw"), await opened(server.port, "AUTH secret")
    rotated = UserEntry("alice", (generated_hash(b"new"), generated_hash(b"newer")), ALICE.rules)
    use(access, DEFAULT, rotated)
    for cut in (old, gone):
        async with asyncio.timeout(5):
            assert await cut[0].read(-1) == b""
    assert await ask(new, "PING") == "+PONG"
    assert await ask(stays, "PING") == "+PONG"
    use(access, DEFAULT, UserEntry("alice", rotated.passwords, ("+@all", "~*")))
    async with asyncio.timeout(5):
        assert await new[0].read(-1) == b""
    assert [account.connections for account in access.users.values()] == [1, 0]


async def test_a_transaction_does_not_outlive_the_rights_it_was_queued_with(server, access):
    stream = await opened(server.port, "AUTH secret")
    assert await ask(stream, "MULTI") == "+OK"
    assert await ask(stream, "SET a 1") == "+QUEUED"
    (session,) = server.sessions()
    session.guard = access.users[b"alice"].guard
    assert (await ask(stream, "EXEC")).startswith("-NOPERM ACLs rules changed between the moment")
    session.guard = None
    assert await ask(stream, "EXISTS a") == ":0"


async def test_another_user_hears_nothing_of_what_the_first_began(server):
    reader, writer = stream = await connected(server.port)
    writer.write(encode_request([b"HELLO", b"3", b"AUTH", b"default", b"secret"]))
    await reader.readuntil(b"modules\r\n*0\r\n")
    assert await ask(stream, "CLIENT TRACKING on") == "+OK"
    writer.write(encode_request([b"SUBSCRIBE", b"a"]))
    await reader.readuntil(b":1\r\n")
    assert await ask(stream, "AUTH alice new") == "+OK"
    (session,) = server.sessions()
    assert not session.hears


async def test_events_and_broadcasts_stay_within_the_rights(server):
    reader, writer = await opened(server.port)
    everything = encode_request([b"PSUBSCRIBE", b"news:*"])
    writer.write(everything)
    await reader.readuntil(b":1\r\n")
    (session,) = server.sessions()
    server.pubsub.unsubscribe_pattern(session, b"news:*")
    await server.pubsub.subscribe_patterns(session, [b"__key*"])
    for channel, message in (
        (b"__keyspace@0__:other", b"set"),
        (b"__keyevent@0__:set", b"other"),
        (b"__keyspace@0__:cfg:1", b"set"),
        (b"__keyevent@0__:set", b"orders:1"),
    ):
        await server.pubsub.publish(channel, message)
    received = await asyncio.wait_for(reader.readuntil(b"orders:1\r\n"), 5)
    assert b"cfg:1" in received
    assert b"other" not in received


async def test_connections_of_a_user_are_limited(server, access):
    use(access, UserEntry("one", (generated_hash(b"pw"),), ("+@all", "~*"), connections_max=1))
    first = await opened(server.port, "AUTH one pw")
    second = await connected(server.port)
    assert (await ask(second, "AUTH one pw")).startswith("-ERR user has 1 connections to this member")
    assert await ask(first, "AUTH one pw") == "+OK"
    assert await ask(first, "QUIT") == "+OK"
    await first[0].read(-1)
    await asyncio.sleep(0.05)
    assert await ask(second, "AUTH one pw") == "+OK"


async def test_wrong_passwords_are_limited_by_address(server, clock):
    wrong = ["AUTH wrong"] * FAILURES_AT_ONCE
    refused = (await played(server.port, *wrong, "AUTH secret")).split(b"\r\n")
    assert refused[0] == b"-WRONGPASS invalid username-password pair or user is disabled."
    assert refused[FAILURES_AT_ONCE].startswith(
        b"-WRONGPASS too many wrong passwords from 127.0.0.1: wait 5 s"
    )
    clock.now += SECONDS_PER_FAILURE
    assert (await played(server.port, "AUTH secret")).startswith(b"+OK")


async def test_scrypt_is_computed_once_and_never_by_more_than_two_threads(server, access, monkeypatch):
    use(access, CHOSEN, DEFAULT)
    computed, running, most = [], [0], [0]
    compute = type(access.checker._dummy).compute

    def counted(scrypt, password):
        running[0] += 1
        most[0] = max(most[0], running[0])
        computed.append(password)
        try:
            return compute(scrypt, password)
        finally:
            running[0] -= 1

    monkeypatch.setattr(type(access.checker._dummy), "compute", counted)
    many = [played(server.port, "AUTH person hunter2") for _ in range(5)]
    assert all(found.startswith(b"+OK") for found in await asyncio.gather(*many))
    assert 1 <= len(computed) <= 5
    assert most[0] <= SCRYPT_AT_ONCE
    before = len(computed)
    assert (await played(server.port, "AUTH person hunter2", "AUTH secret")).startswith(b"+OK\r\n+OK")
    assert len(computed) == before
    # Whether a user exists, and of which kind its password is, shows in no time that it takes.
    for line in ("AUTH person wrong", "AUTH nobody wrong", "AUTH default wrong"):
        await played(server.port, line)
        assert len(computed) == (before := before + 1)


async def test_a_user_that_does_not_exist_costs_as_much_as_the_most_expensive(access, monkeypatch):
    costs = []
    monkeypatch.setattr(Scrypt, "compute", lambda each, _: costs.append((each.n, each.r, each.p)) or b"")
    use(access, UserEntry("dear", (f"scrypt:32768:8:1:{'0' * 32}:{'0' * 64}",), ()), CHOSEN)
    assert await access.checker.find(NO_PASSWORDS, b"wrong") is None
    assert costs == [(32_768, 8, 1)]


async def test_passwords_that_wait_for_scrypt_are_limited(server, access, monkeypatch):
    use(access, CHOSEN)
    monkeypatch.setattr(access.checker, "_waiting", SCRYPT_WAITING_MAX + SCRYPT_AT_ONCE)
    assert (await played(server.port, "AUTH person x")).startswith(b"-TRYAGAIN 64 passwords wait")


async def test_requests_before_auth_are_small(server):
    big = encode_request([b"GET", b"x" * (16 * 1024 + 1)])
    many = encode_request([b"MGET"] * 11)
    for sent, error in ((big, b"unauthenticated bulk length"), (many, b"unauthenticated multibulk length")):
        reader, writer = await connected(server.port)
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(-1), 5) == b"-ERR Protocol error: " + error + b"\r\n"
        writer.close()
    stream = await opened(server.port, "AUTH secret")
    stream[1].write(big + many)
    assert await stream[0].readline() == b"$-1\r\n"


@pytest.mark.parametrize("hello", [False, True], ids=["AUTH", "HELLO"])
@pytest.mark.parametrize("user", [DEFAULT, CHOSEN], ids=lambda user: user.name)
async def test_what_is_sent_with_auth_is_judged_after_it(server, access, user, hello):
    """Also while a password is checked slowly, and what comes then."""
    use(access, user)
    name, password = (b"default", b"secret") if user is DEFAULT else (b"person", b"hunter2")
    login = [b"HELLO", b"2", b"AUTH", name, password] if hello else [b"AUTH", name, password]
    big = encode_request([b"SET", b"a", b"x" * 200_000])
    many = encode_request([b"MSET"] + [b"b", b"y"] * 1000)
    reader, writer = await connected(server.port)
    writer.write(encode_request(login) + big)
    await asyncio.sleep(0.01)
    writer.write(many + encode_request([b"ECHO", b"over"]))
    got = b""
    while not got.endswith(b"over\r\n"):
        got += await asyncio.wait_for(reader.read(65536), 10)
    assert got.endswith(b"+OK\r\n+OK\r\n$4\r\nover\r\n")
    assert b"-" not in got.replace(b"stele", b"")
    writer.write(encode_request([b"QUIT"]))
    writer.close()


async def test_what_is_sent_with_a_wrong_password_is_judged_as_before_it(server):
    big = encode_request([b"SET", b"a", b"x" * 20_000])
    reader, writer = await connected(server.port)
    writer.write(encode_request([b"AUTH", b"wrong"]) + encode_request([b"GET", b"a"]) + big)
    lines = (await asyncio.wait_for(reader.read(-1), 5)).split(b"\r\n")
    assert [each.split()[0] for each in lines[:3]] == [b"-WRONGPASS", b"-NOAUTH", b"-ERR"]
    assert lines[2] == b"-ERR Protocol error: unauthenticated bulk length"
    writer.close()
    reader, writer = await connected(server.port)
    writer.write(encode_request([b"AUTH", b"wrong"]) + b"*1\r\n$4\r\nPING\r\n" * 6_000)
    assert (await asyncio.wait_for(reader.read(-1), 10)).startswith(b"-WRONGPASS")
    writer.close()
    assert server.waiting_bytes == 0


async def test_idle_guests_make_room_for_new_ones_and_the_error_names_the_limit(store, access):
    server = RespServer(store, RespServerLimits(guests_max=3, guest_seconds_max=600), access=access)
    await server.listen("127.0.0.1", 0)
    users = [await opened(server.port, "AUTH secret") for _ in range(3)]
    idle = [await connected(server.port) for _ in range(3)]
    users.append(await opened(server.port, "AUTH secret"))
    gone = await asyncio.wait_for(idle[0][0].read(-1), 5)
    assert gone.startswith(
        b"-NOAUTH another client needs this place (a member takes 3 without AUTH (guests_max)"
    )
    for stream in users:
        assert await ask(stream, "PING") == "+PONG"
    for stream in idle[1:]:
        assert (await ask(stream, "AUTH secret")) == "+OK"
    stats = await ask(users[0], "INFO stats")
    assert stats.startswith("$")
    length, text = int(stats[1:]), b""
    text = await users[0][0].readexactly(length + 2)
    assert b"\r\nevicted_unauthenticated_clients:1\r\n" in text
    assert access.refused == {"evicted": 1}
    assert not access.guests
    await server.close()


async def test_idle_guests_make_room_where_all_places_are_taken(store, access):
    limits = RespServerLimits(clients_max=3, guests_max=2, guest_seconds_max=600)
    server = RespServer(store, limits, access=access)
    await server.listen("127.0.0.1", 0)
    first = await opened(server.port, "AUTH secret")
    idle = [await connected(server.port) for _ in range(2)]
    second = await opened(server.port, "AUTH secret")
    assert await asyncio.wait_for(idle[0][0].read(-1), 5)
    third = await opened(server.port, "AUTH secret")
    assert await asyncio.wait_for(idle[1][0].read(-1), 5)
    refused = (await played(server.port)).decode()
    assert refused == "-ERR max number of clients reached: this member accepts 3 (clients_max)\r\n"
    for stream in (first, second, third):
        assert await ask(stream, "PING") == "+PONG"
    await server.close()


async def test_guests_whose_password_is_checked_keep_their_place(store, access, monkeypatch):
    use(access, DEFAULT, CHOSEN)
    begun, over = asyncio.Event(), asyncio.Event()

    async def find(*_):
        begun.set()
        await over.wait()
        return CHOSEN.passwords[0]

    monkeypatch.setattr(access.checker, "find", find)
    server = RespServer(store, RespServerLimits(guests_max=1, guest_seconds_max=600), access=access)
    await server.listen("127.0.0.1", 0)
    checked = await connected(server.port)
    checked[1].write(b"AUTH person hunter2\r\n")
    await begun.wait()
    refused = (await played(server.port)).decode()
    assert refused == "-ERR max number of clients without AUTH reached: it is 1 (guests_max)\r\n"
    over.set()
    assert await checked[0].readline() == b"+OK\r\n"
    await server.close()


async def test_who_does_not_authenticate_in_time_is_closed(store, access):
    server = RespServer(store, RespServerLimits(guest_seconds_max=2), access=access)
    await server.listen("127.0.0.1", 0)
    reader, writer = await connected(server.port)
    stays = await opened(server.port, "AUTH secret")
    assert len(access.guests) == 1
    assert await asyncio.wait_for(reader.read(-1), 5) == b"-NOAUTH no AUTH within 2 seconds\r\n"
    writer.close()
    assert await ask(stays, "PING") == "+PONG"
    assert await ask(stays, "RESET") == "+RESET"
    assert len(access.guests) == 1
    assert (await asyncio.wait_for(stays[0].read(-1), 5)).startswith(b"-NOAUTH no AUTH")
    assert len(access.guests) == 0
    await server.close()


async def test_thousands_who_do_not_authenticate_take_bounded_memory(store, access):
    """Each has sent as much as it may, without an end, and reads nothing."""
    server = RespServer(store, RespServerLimits(guests_max=1000, guest_seconds_max=600), access=access)
    await server.listen("127.0.0.1", 0)
    part = b"*10\r\n" + b"$16384\r\n" + b"x" * 16_384 + b"\r\n" + b"$16384\r\n" + b"x" * 10_000
    tracemalloc.start()
    try:
        writers = [(await connected(server.port))[1] for _ in range(1200)]
        for writer in writers:
            writer.write(part)
        await until(lambda: server.waiting_bytes >= 1000 * 26_000)
        assert len(access.guests) == 1000
        assert server.waiting_bytes <= 1000 * GUEST_HELD_BYTES_MAX
        size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        for writer in writers:
            writer.close()
        await server.close()
    assert size < 1200 * 2 * GUEST_HELD_BYTES_MAX


async def test_acl_log_has_what_was_refused(server, access, clock):
    stream = await opened(server.port, "AUTH secret")
    await played(
        server.port, "AUTH alice wrong", "AUTH alice new", "GET other", "GET other", "MULTI", "FLUSHALL"
    )
    clock.now += 2
    (auth, key, command) = access.log.newest(10)[::-1]
    assert [each[b"reason"] for each in (auth, key, command)] == [b"auth", b"key", b"command"]
    assert (key[b"count"], key[b"object"], key[b"username"]) == (2, b"other", b"alice")
    assert (command[b"context"], command[b"object"]) == (b"multi", b"flushall")
    assert key[b"age-seconds"] == b"2.000"
    assert b"user=alice" in key[b"client-info"]
    assert await ask(stream, "ACL LOG RESET") == "+OK"
    assert await ask(stream, "ACL LOG") == "*0"
    facts = server.facts()
    assert (facts["acl_access_denied_auth"], facts["acl_access_denied_key"]) == (1, 2)


@pytest.mark.parametrize("line", ["ACL SETUSER a on", "ACL DELUSER a", "ACL LOAD", "ACL SAVE"])
async def test_users_are_changed_in_their_file_only(server, line):
    stream = await opened(server.port, "AUTH secret")
    assert (await ask(stream, line)).startswith("-ERR no command changes users: edit the TabletUser")


async def test_getuser_shows_the_rights(server):
    shown = await played(server.port, "AUTH secret", "HELLO 3", "ACL GETUSER alice", "ACL GETUSER shop")
    for part in (b"+@all -@dangerous", b"~orders:* %R~cfg:*", b"&news:*", b"keyspaces\r\n*2\r\n$4\r\nshop"):
        assert part in shown


async def test_the_file_is_watched(server, access, tmp_path):
    """Users of a Secret that the kubelet replaces are in effect within a second or two."""
    path = tmp_path / "users"
    level = ClientAuth.REQUIRED
    users = UsersFile(access, str(path), lambda: level)
    path.write_bytes(encode_users([DEFAULT, ALICE]))
    await users.look()
    alice = await opened(server.port)
    watching = asyncio.create_task(users.watch())
    replaced = tmp_path / "next"
    replaced.write_bytes(encode_users([DEFAULT]))
    replaced.rename(path)
    async with asyncio.timeout(5):
        assert await alice[0].read(-1) == b""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for damage in (lambda: path.write_bytes(b"{}"), path.unlink):
        damage()
        await until(lambda: access.users_problem)
        assert access.file.digest == digest
        assert (await played(server.port, "AUTH secret")).startswith(b"+OK")
        path.write_bytes(encode_users([DEFAULT]))
        await until(lambda: not access.users_problem)
    watching.cancel()


async def test_a_user_without_rights_gets_nothing_however_a_command_is_written(server, access, store):
    """Also with any number of arguments: what is malformed does not run, and everything else is refused."""
    use(access, DEFAULT, UserEntry("none", (generated_hash(b"pw"),), ()))
    owner = await opened(server.port, "AUTH secret")
    assert await ask(owner, "SET a 1") == "+OK"
    names = sorted(each.decode() for each in {*OFFERED, b"KEYS"} - {b"HELLO", b"QUIT", b"RESET"})
    for number in range(7):
        lines = [f"{name} {' '.join(['a'] * number)}".strip() for name in names]
        lines += [f"{name.lower()} {sub} {' '.join(['a'] * number)}".strip() for name, sub in SUBCOMMANDS]
        received = (await played(server.port, "AUTH none pw", *lines)).split(b"\r\n")
        assert received[0] == b"+OK"
        assert received[-2:] == [b"+OK", b""]
        answered = dict(zip(lines, received[1:-2], strict=True))
        assert {line: reply for line, reply in answered.items() if reply[:1] != b"-"} == {}
    assert await ask(owner, "EXISTS a") == ":1"
    assert await ask(owner, "DBSIZE") == ":1"


@pytest.mark.parametrize("bcast", [True, False])
async def test_broadcast_invalidations_are_about_keys_of_the_user(server, bcast):
    """Keys that the client has read are always named: it may have them in its cache."""
    reader, writer = await connected(server.port)
    writer.write(encode_request([b"HELLO", b"3", b"AUTH", b"alice", b"new"]))
    await reader.readuntil(b"modules\r\n*0\r\n")
    assert await ask((reader, writer), f"CLIENT TRACKING ON{' BCAST' * bcast}") == "+OK"
    (session,) = server.sessions()
    session.tracking.invalidate([b"other", b"orders:1"])
    session.tracking.invalidate([b"last", b"orders:2"])
    received = await asyncio.wait_for(reader.readuntil(b"orders:2\r\n"), 5)
    assert (b"other" in received, b"last" in received, b"orders:1" in received) == (
        not bcast,
        not bcast,
        True,
    )
