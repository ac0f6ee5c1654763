"""Reading stored objects: a model or a clear error value, never an exception."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.control.commands import ClusterState
from stele.model import TabletCluster, TabletMember, TabletRebalance, TabletUser, Unreadable
from stele.model.cluster import EngineChoice, Fsync
from stele.model.common import parse_quantity, quantity_bytes
from stele.model.rebalance import CountsByType
from stele.model.validation import problems

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
FIELDS = st.sampled_from(
    ["metadata", "spec", "status", "kind", "name", "members", "storage", "size", "cluster"]
)
OBJECTS = st.recursive(JSON, lambda inner: st.dictionaries(FIELDS, inner, max_size=5), max_leaves=10)


def stored(status: Any = None, **spec: Any) -> dict[str, Any]:
    given = {"members": 3, "storage": {"size": "2Gi"}, **spec}
    found = {"metadata": {"name": "demo", "namespace": "shop", "generation": 4}, "spec": given}
    return {**found, "status": status} if status is not None else found


def read(**spec: Any) -> TabletCluster:
    found = TabletCluster.read(stored(**spec))
    assert isinstance(found, TabletCluster), found
    return found


def test_defaults() -> None:
    cluster = read()
    assert cluster.key == ("shop", "demo")
    assert cluster.metadata.generation == 4
    spec = cluster.spec
    assert (spec.members, spec.partitions, spec.replicas, spec.state) == (3, 271, 2, ClusterState.ACTIVE)
    assert (spec.storage.fsync, spec.migration.engine) == (Fsync.ALWAYS, EngineChoice.AUTO)
    assert (spec.migration.max_parallel_per_member, spec.spark.memory) == (40, "896Mi")
    assert spec.failure_detection.rejoin_grace_period_seconds == 30
    assert cluster.status.conditions == ()


def test_fields_of_a_newer_version_are_left_out() -> None:
    assert "shine" not in read(shine=True).spec.to_dict()


@pytest.mark.parametrize(
    "spec",
    [
        {"acl": [">hunter22pw" + "x" * 300]},
        {"acl": {"rules": ">hunter22pw"}},
        {"acl": ["+get", {"rule": ">hunter22pw"}]},
        {"acl": [">hunter22pw"], "cluster": None},
    ],
)
def test_an_error_does_not_repeat_what_may_be_a_password(spec: dict[str, Any]) -> None:
    found = TabletUser.read({"metadata": {"name": "shop"}, "spec": {"cluster": "demo", **spec}})
    assert isinstance(found, Unreadable)
    assert "hunter22" not in str(found)
    missing = TabletUser.read({"metadata": {"name": "shop"}, "spec": {"acl": [">hunter22pw"]}})
    assert "spec.cluster is (not shown): Field required" in str(missing)


def test_numbers_are_quantities_too() -> None:
    resources = read(resources={"limits": {"cpu": 2, "memory": "1Gi"}}).spec.resources
    assert resources.limits == {"cpu": "2", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("bad", "field", "text"),
    [
        ({"members": 0}, "spec.members", "greater than or equal to 1"),
        ({"members": None}, "spec.members", "integer"),
        ({"replicas": 9}, "spec.replicas", "less than or equal to 7"),
        ({"state": "Off"}, "spec.state", "'Active'"),
        ({"storage": {"size": "big"}}, "spec.storage.size", "not a quantity"),
        ({"storage": {"size": "-1"}}, "spec.storage.size", "not above zero"),
        ({"storage": []}, "spec.storage", "dictionary"),
        ({"resources": {"limits": {"cpu": "x" * 1000}}}, "spec.resources.limits.cpu", "not a quantity"),
        (
            {"failureDetection": {"leaseSeconds": float("nan")}},
            "spec.failureDetection.leaseSeconds",
            "number",
        ),
    ],
    ids=lambda case: case if isinstance(case, str) else None,
)
def test_a_bad_spec_names_object_field_value_and_expectation(
    bad: dict[str, Any], field: str, text: str
) -> None:
    found = TabletCluster.read(stored(**bad))

    assert isinstance(found, Unreadable)
    assert (found.kind, found.namespace, found.name) == ("TabletCluster", "shop", "demo")
    assert [problem.field for problem in found.problems] == [field]
    assert text in str(found)
    assert len(str(found)) < 500


@pytest.mark.parametrize("status", ["garbage", {"epoch": "x"}, {"conditions": [{"type": "Ready"}]}, 7])
def test_a_status_that_cannot_be_read_counts_as_none(status: Any) -> None:
    found = TabletCluster.read(stored(status))
    assert isinstance(found, TabletCluster)
    assert found.status.epoch == 0


@given(OBJECTS)
def test_reading_never_raises(thing: Any) -> None:
    for model in (TabletCluster, TabletMember, TabletRebalance):
        found = model.read(thing)
        assert isinstance(found, model | Unreadable)
        assert str(found)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2Gi", 2**31),
        ("64Mi", 67_108_864),
        ("1k", 1000),
        ("1e3", 1000),
        ("1.5Ki", 1536),
        ("1500m", 2),
        ("7", 7),
        (".5", 1),
    ],
)
def test_quantities_in_bytes(text: str, value: int) -> None:
    assert quantity_bytes(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "2 Gi", "2gi", "1e", "--1", "1" * 33, "1e999", "2Gi\n", "٣Gi"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


def test_problems_say_what_to_do() -> None:
    assert problems(read()) == []
    (few,) = problems(read(members=1, replicas=3))
    assert few.reason == "FewerMembersThanReplicas"
    assert "raise spec.members to 3 or lower spec.replicas to 1" in few.message

    limits = {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "1500m", "memory": "1024Mi"}}
    (high,) = problems(read(resources=limits))
    assert high.reason == "RequestsExceedLimits"
    assert "spec.resources.requests.cpu is 2" in high.message


def test_counts_by_type_add_up_and_keep_their_names() -> None:
    counts = CountsByType.of(move=2, copy=3, shift_up=4, shift_down=5, clear=6, swap=7)
    assert counts.to_dict() == {
        "total": 27,
        "move": 2,
        "copy": 3,
        "shiftUp": 4,
        "shiftDown": 5,
        "clear": 6,
        "swap": 7,
    }
