"""The data source in a real Spark on one machine, against real member processes."""

import os
import re
import sys

import pytest
from pyspark.sql import SparkSession

from e2e.cluster import debian
from e2e.cluster.errors import MachineUnfitError
from stele.client.members import Members
from stele.client.spark import SteleDataSource
from stele.core.security.level import STEPS
from tests.member.bulk import test_bulk_tls
from tests.member.bulk.test_bulk_loads import loading, rows
from tests.member.test_member_tls import tell

QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""A JVM that starts soon and ends soon, as that of the image `sql`."""


@pytest.fixture(scope="module")
def java():
    """Spark runs in a JVM: one is installed where that can be done. Where it cannot, the skip says so."""
    if "JAVA_HOME" in os.environ:
        return
    try:
        debian.ensure_packages({"default-jre-headless": "java"})
    except MachineUnfitError as error:
        pytest.skip(f"Spark needs Java 17. {error}")


@pytest.fixture(scope="module")
def session(java):
    """One Spark for all tests of this file: it takes seconds to start."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LAUNCHER_OPTS"] = QUICK_JVM
    made = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", QUICK_JVM)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    made.dataSource.register(SteleDataSource)
    yield made
    made.stop()


def write(session, frame, members, **options):
    address = ",".join(f"{host}:{port}" for host, port in members.seeds)
    writing = frame.write.format("stele").option("address", address).mode("append")
    for name, value in options.items():
        writing = writing.option(name, value)
    writing.save()


def frame_of(session, members, **options):
    address = ",".join(f"{host}:{port}" for host, port in members.seeds)
    reading = session.read.format("stele").option("address", address)
    for name, value in options.items():
        reading = reading.option(name, value)
    return reading.load()


def read(session, members, **options):
    return frame_of(session, members, **options).collect()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_a_frame_is_written_and_read_back(session, tmp_path):
    wanted = rows(3000)
    async with loading(tmp_path) as (_, members):
        frame = session.createDataFrame(list(wanted.items()), "key binary, value binary").repartition(5)
        write(session, frame, members, keyspace="users")
        found = read(session, members, keyspace="users")
        assert {bytes(row.key): bytes(row.value) for row in found} == wanted
        assert {row.expire_at_ms for row in found} == {0}
        assert read(session, members) == []


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_text_and_timestamps_are_taken(session, tmp_path):
    async with loading(tmp_path) as (_, members):
        frame = session.sql(
            "select 'a' as name, 'one' as text, timestamp'2100-01-01 00:00:00' as until "
            "union all select 'b', 'two', null union all select 'c', 'gone', timestamp'2001-01-01 00:00:00'"
        )
        columns = {"keyColumn": "name", "valueColumn": "text", "expireColumn": "until"}
        write(session, frame, members, **columns)
        found = read(session, members)
        assert sorted((bytes(r.key), bytes(r.value), r.expire_at_ms) for r in found) == [
            (b"a", b"one", 4_102_444_800_000),
            (b"b", b"two", 0),
        ]
        write(session, frame_of(session, members), members, keyspace="again")
        assert sorted(read(session, members, keyspace="again")) == sorted(found)


@pytest.mark.parametrize(
    ("sql", "options", "text"),
    [
        ("select 'a' as k, 'b' as value", {}, "column 'key' does not exist; the columns are k, value"),
        ("select 1 as key, 'b' as value", {}, "column 'key' is int; expected string or binary"),
        ("select 'a' as key, 'b' as value", {"adress": "x"}, "option adress is unknown"),
        ("select 'a' as key, 'b' as value", {"duplicates": "first"}, "option duplicates is 'first'"),
        ("select 'a' as key, 'b' as value", {"load": "Mine!"}, "load is 'Mine!'"),
        ("select 'a' as key, 'b' as value", {"keyspace": "x" * 64}, "expected 1 to 63 bytes"),
        ("select 'a' as key, 'b' as value", {"address": "host:what"}, "address is 'host:what'"),
        ("select 'a' as key, cast(null as string) as value", {"address": "127.0.0.1:1"}, "no value (null)"),
    ],
)
def test_what_is_wrong_is_named(session, sql, options, text):
    given = {"address": "127.0.0.1:1", **options}
    writing = session.sql(sql).write.format("stele").mode("append").options(**given)
    with pytest.raises(Exception, match=re.escape(text)):
        writing.save()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_a_frame_where_members_take_only_tls(session, tmp_path):
    """Each task reads the folder of the certificate."""
    wanted = rows(300)
    async with test_bulk_tls.loading(tmp_path) as (made, place):
        for level in STEPS[1:]:
            await tell(made, level)
        members = Members(place)
        frame = session.createDataFrame(list(wanted.items()), "key binary, value binary").repartition(2)
        with pytest.raises(Exception, match=r"option tlsFolder \(--tls-folder\) is not set"):
            write(session, frame, members)
        tls = {"tlsFolder": str(tmp_path / "admin")}
        write(session, frame, members, **tls)
        assert {bytes(row.key): bytes(row.value) for row in read(session, members, **tls)} == wanted
        members.close()
