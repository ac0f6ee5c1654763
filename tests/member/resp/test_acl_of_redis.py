"""Rights: categories, rules and decisions are those of redis-server for the same rules and requests."""

import redis
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stele.core.kv.acl import RuleError, compile_user, may_run
from stele.core.kv.command_categories import CATEGORIES, COMMANDS, CONTAINERS
from stele.member.resp.session_commands import OFFERED

NOT_IN_REDIS_7_0 = {"client|maint_notifications", "client|setinfo", "stele.once"}

REQUESTS = {
    "mset": ["a", "1", "b", "2"],
    "msetnx": ["a", "1", "b", "2"],
    "mget": ["a", "b"],
    "set": ["a", "1", "GET"],
    "setnx": ["a", "1"],
    "setex": ["a", "1", "1"],
    "psetex": ["a", "1", "1"],
    "getset": ["a", "1"],
    "getrange": ["a", "0", "1"],
    "substr": ["a", "0", "1"],
    "setrange": ["a", "0", "1"],
    "append": ["a", "1"],
    "incrby": ["a", "1"],
    "decrby": ["a", "1"],
    "incrbyfloat": ["a", "1"],
    "expire": ["a", "1"],
    "pexpire": ["a", "1"],
    "expireat": ["a", "1"],
    "pexpireat": ["a", "1"],
    "publish": ["a", "1"],
    "spublish": ["a", "1"],
    "keys": ["*"],
    "scan": ["0"],
    "select": ["0"],
    "echo": ["a"],
    "wait": ["1", "1"],
    "auth": ["x"],
    "memory|usage": ["a"],
    "config|get": ["a"],
    "config|set": ["a", "b"],
    "cluster|keyslot": ["a"],
    "client|setname": ["a"],
    "client|reply": ["on"],
    "client|tracking": ["on"],
    "client|caching": ["yes"],
    "acl|getuser": ["a"],
    "acl|setuser": ["a"],
    "acl|deluser": ["a"],
    "acl|dryrun": ["a", "get", "a"],
}
"""What follows a command, where it is not one key or nothing."""

_NO_ARGUMENTS = {
    *(
        "dbsize",
        "discard",
        "exec",
        "multi",
        "unwatch",
        "flushall",
        "flushdb",
        "info",
        "ping",
        "quit",
        "reset",
    ),
    *("readonly", "readwrite", "asking", "time", "hello", "command"),
}
RULE_SETS = [
    [],
    ["+@all"],
    ["+@all", "~*"],
    ["+@all", "~*", "&*"],
    ["+@all", "%R~a", "%W~b", "&b"],
    ["+@all", "%W~*", "&[a-c]"],
    ["+@all", "%RW~?", "%R~*", "-client|list", "-get"],
    ["+@all", "%R~a", "%W~a"],
    ["allkeys", "allchannels", "+client|id", "+config", "-config|set", "+@transaction"],
    *(["~a*", "&a*", f"+@{category}"] for category in CATEGORIES),
    *(["~*", "&*", "+@all", f"-@{category}"] for category in CATEGORIES),
]


def words_of(command: str) -> list[str]:
    rest = REQUESTS.get(command, [] if "|" in command or command in _NO_ARGUMENTS else ["a"])
    return [*command.split("|"), *rest]


def decision(user, words):
    request = [word.encode() for word in words]
    denied = may_run(user, request[0].upper(), request, b"default")
    return "OK" if denied is None else denied.dry_run.decode()


def test_categories_are_those_of_redis(reference):
    with redis.Redis(port=reference, decode_responses=True) as client:
        offered = {name.decode().lower() for name in OFFERED} | {"acl", "auth", "keys"}
        assert offered <= COMMANDS
        assert set(client.acl_cat()) == set(CATEGORIES)
        for category, names in CATEGORIES.items():
            others = NOT_IN_REDIS_7_0
            assert set(client.acl_cat(category)) & COMMANDS == names - others, category


def test_decisions_are_those_of_redis(reference):
    """Every command with every set of rules, as ACL DRYRUN answers."""
    commands = sorted(COMMANDS - CONTAINERS - NOT_IN_REDIS_7_0)
    with redis.Redis(port=reference, decode_responses=True) as client:
        for rules in RULE_SETS:
            client.execute_command("ACL SETUSER", "someone", "reset", *rules)
            user = compile_user("someone", rules)
            for command in commands:
                words = words_of(command)
                expected = client.execute_command("ACL DRYRUN", "someone", *words)
                assert decision(user, words) == str(expected), (rules, words)


_patterns = st.text("ab*?[]-^\\x", min_size=0, max_size=6)
_rules = st.one_of(
    st.sampled_from(["allkeys", "resetkeys", "allchannels", "resetchannels", "nocommands", "+@all", "-@all"]),
    st.tuples(st.sampled_from("+-"), st.sampled_from(sorted(CATEGORIES))).map("@".join),
    st.tuples(st.sampled_from("+-"), st.sampled_from(sorted(COMMANDS - NOT_IN_REDIS_7_0))).map("".join),
    st.tuples(st.sampled_from(["~", "%R~", "%W~", "%RW~", "%~", "%X~", "&"]), _patterns).map("".join),
    st.sampled_from(["+nosuch", "+@nosuch", "-client|nosuch", "nosuch", "(+get)x"]),
)
_words = st.text("abx", min_size=1, max_size=4)


@settings(max_examples=400)
@example(rules=["allkeys", "~*", "~*", "&*", "allchannels", "&*"], keys=["a", "b"])
@given(st.lists(_rules, max_size=8), st.lists(_words, min_size=2, max_size=2))
def test_any_rules_mean_what_they_mean_in_redis(reference, rules, keys):
    requests = [["GET", keys[0]], ["SET", keys[0], "1"], ["SET", keys[0], "1", "GET"], ["DEL", *keys]]
    requests += [["EXISTS", *keys], ["SUBSCRIBE", *keys], ["PSUBSCRIBE", "a*"], ["CLIENT", "LIST"], ["PING"]]
    requests += [["PUBLISH", keys[0], "1"], ["MSET", keys[0], "1", keys[1], "2"]]
    with redis.Redis(port=reference, decode_responses=True, retry_on_error=[redis.ConnectionError]) as client:
        try:
            client.execute_command("ACL SETUSER", "someone", "reset", *rules)
        except redis.ResponseError:
            client.execute_command("ACL DELUSER", "someone")
            expected = None
        else:
            expected = [str(client.execute_command("ACL DRYRUN", "someone", *words)) for words in requests]
    try:
        user = compile_user("someone", rules)
    except RuleError:
        found = None
    else:
        found = [decision(user, words) for words in requests]
    assert found == expected, rules
