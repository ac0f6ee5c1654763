"""What operations change together is the same whether runs of PUTs are added at once or one by one."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.member.replication.operations import Effects
from stele.wire.storage import keys
from stele.wire.storage.log_record import Change, batch_record, delete_record, noop_record, put_record

HEAD = keys.user_head(7, 1)
KEYSPACES = st.sampled_from([b"default", b"shop"])
KEYS = st.sampled_from([b"a", b"b", b"cc"])
VALUES = st.sampled_from([b"", b"x", b"y", b"long value"])
puts = st.builds(put_record, st.just(3), KEYSPACES, KEYS, VALUES, st.sampled_from([0, 99]))
records = st.lists(
    puts
    | puts
    | st.builds(delete_record, st.just(3), KEYSPACES, KEYS)
    | st.builds(lambda *parts: batch_record(3, [Change(*parts)]), KEYSPACES, KEYS, VALUES | st.none())
    | st.just(noop_record(3)),
    max_size=12,
)
names = st.builds(keys.user_tail, KEYSPACES, KEYS)
stored = st.dictionaries(names, VALUES.map(lambda value: keys.pack_value(value, 0)))


def applied(found, before, recent, *, at_once, with_changes=True, bytes_max=10**6):
    """Return what the records change, and the rounds that this took."""
    data = {HEAD + name: value for name, value in before.items()}
    engine = SimpleNamespace(get=data.get)
    if recent is not None:
        engine.recent = {HEAD + name: value for name, value in before.items() if name in recent}
    effects = Effects(HEAD, {b"default": (9, 900)}, [] if with_changes else None)
    by_index = dict(enumerate(found, 1))
    index = rounds = 0
    while index < len(found):
        rounds += 1
        size = 0
        if at_once:
            index, size = effects.add_puts(by_index, index, len(found), engine, bytes_max)
        if not size:
            index += 1
            effects.add(index, by_index[index], engine.get)
    return effects, rounds


@given(records, stored, st.none() | st.sets(names), st.booleans(), st.sampled_from([1, 60, 10**6]))
def test_runs_of_puts_are_added_as_single_ones_are(found, before, recent, with_changes, bytes_max):
    kwargs = {"with_changes": with_changes, "bytes_max": bytes_max}
    one, _ = applied(found, before, recent, at_once=False, **kwargs)
    other, _ = applied(found, before, recent, at_once=True, **kwargs)
    assert one == other
    assert list(one.entries) == list(other.entries)


def test_a_run_ends_at_another_kind_at_a_gap_and_at_its_size():
    put = put_record(3, b"default", b"a", b"x", 0)
    engine = SimpleNamespace(get=lambda _: None)

    def run(found, last, bytes_max=10**6):
        return Effects(HEAD, {}, None).add_puts(found, 0, last, engine, bytes_max)

    assert run({1: put, 2: put, 3: noop_record(3)}, 3) == (2, 2 * len(put))
    assert run({1: put, 3: put}, 3) == (1, len(put))
    assert run({1: put, 2: put}, 1) == (1, len(put))
    assert run({1: put, 2: put, 3: put}, 3, len(put) + 1) == (2, 2 * len(put))
    assert run({}, 3) == (0, 0)


def test_an_error_of_the_engine_is_passed_on():
    def get(_: bytes) -> bytes:
        raise OSError("damaged")

    put = put_record(3, b"default", b"a", b"x", 0)
    with pytest.raises(OSError, match="damaged"):
        Effects(HEAD, {}, None).add_puts({1: put}, 0, 1, SimpleNamespace(get=get), 100)  # type: ignore[arg-type]
