"""A copy job's Spark with one executor on this machine, as a process of its own; see `test_spark_ports.py`.

Its arguments are the folder for its files, the address and the two ports at which executors look for the
driver, which listens at 127.0.0.1, and the secret, or nothing for Spark without authentication.
It prints one line of JSON, `Facts`, and ends with its stdin.
"""

import json
import secrets
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stele.copyjob.conf import spark_conf
from stele.copyjob.driver import make_context
from stele.copyjob.messages import Start
from stele.copyjob.settings import read_settings
from stele.wire.copy.jobs import CopyJob

POD = {"POD_IP": "127.0.0.1", "POD_NAME": "copier", "POD_NAMESPACE": "ns", "STELE_SPARK_IMAGE": "image:1"}
JOB = CopyJob("s-1", "demo-1", "data-demo-1", "http://127.0.0.1:1", "t", ())
QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
RDD_DATA, BROADCAST_DATA, FILE_DATA = b"<data of an RDD>", b"<data of a broadcast>", b"<data of a file>"


@dataclass(frozen=True)
class Facts:
    """What a client has to know to ask for data. `ask_settings` is a message that asks for all settings."""

    application: str
    driver_port: int
    block_ports: list[int]
    rdd: str
    broadcast: str
    ask_settings: str
    served_at_first: list[str]
    passed: dict[str, str]
    """What went between driver and executor, in hex digits."""


def conf(folder: str, at: tuple[str, str, str], secret: str) -> dict[str, str]:
    """Return the properties of a copy job, with another place for executors and for the secret.

    Spark reads the secret from a file with a Kubernetes master alone.
    """
    made = spark_conf(read_settings(POD | {"STELE_SCRATCH": folder}), JOB, "/t")
    here = {
        name: value for name, value in made.items() if not name.startswith(("spark.kubernetes.", "spark.dyn"))
    }
    del here["spark.submit.deployMode"]
    here |= {
        "spark.master": f"local-cluster[1,{here['spark.executor.cores']},1024]",
        "spark.executor.extraJavaOptions": QUICK_JVM,
        # So that data is recognised.
        "spark.rdd.compress": "false",
        "spark.broadcast.compress": "false",
        "spark.driver.host": at[0],
        "spark.driver.port": at[1],
        "spark.driver.blockManager.port": at[2],
        "spark.blockManager.port": "0",
    }
    del here["spark.authenticate.secret.file"]
    if secret:
        return here | {"spark.authenticate.secret": secret}
    return {
        name: value for name, value in here.items() if "authenticate" not in name and "crypto" not in name
    }


def ask_settings(context: Any, port: int) -> bytes:
    """Return what an executor sends a driver first, as Spark writes it."""
    jvm = context._jvm
    messages = jvm.org.apache.spark.scheduler.cluster
    default_profile = 0
    message = getattr(messages, "CoarseGrainedClusterMessages$RetrieveSparkAppConfig")(default_profile)
    out = jvm.java.io.ByteArrayOutputStream()
    data = jvm.java.io.DataOutputStream(out)
    data.writeBoolean(False)  # No address of a sender.
    data.writeBoolean(True)
    data.writeUTF("127.0.0.1")
    data.writeInt(port)
    data.writeUTF("CoarseGrainedScheduler")
    objects = jvm.java.io.ObjectOutputStream(data)
    objects.writeObject(message)
    objects.flush()
    return bytes(out.toByteArray())


def passed(context: Any) -> dict[str, str]:
    """Have an executor take data of a task and of a broadcast, and give a result back."""
    data, shared = secrets.token_bytes(48), context.broadcast(secrets.token_bytes(48))
    reverse = lambda each: each[::-1] if shared.value else b""  # noqa: E731  a function would be read from here
    (result,) = context.parallelize([data], 1).map(reverse).collect()
    assert result == data[::-1]
    return {"task": data.hex(), "broadcast": shared.value.hex(), "result": result.hex()}


def facts(context: Any, folder: str) -> Facts:
    """Make an executor hold a block, and the driver another one and a file."""
    spark = context._jsc.sc()
    at_first = [
        spark.listFiles().mkString(","),
        spark.listJars().mkString(","),
        spark.listArchives().mkString(","),
    ]
    rdd = context.parallelize([RDD_DATA], 1).cache()
    rdd.count()
    broadcast = context.broadcast(BROADCAST_DATA)
    file = Path(folder) / "known.txt"
    file.write_bytes(FILE_DATA)
    context.addFile(str(file))
    port = int(context.getConf().get("spark.driver.port"))
    managers = spark.getExecutorMemoryStatus().keys().mkString(",").split(",")
    return Facts(
        context.applicationId,
        port,
        [int(each.rpartition(":")[2]) for each in managers],
        f"rdd_{rdd.id()}_0",
        f"broadcast_{broadcast._jbroadcast.id()}_piece0",
        ask_settings(context, port).hex(),
        [each for each in at_first if each],
        passed(context),
    )


def main(folder: str, host: str, port: str, block_port: str, secret: str = "") -> None:
    """Run until stdin ends."""
    context, _ = make_context(Start(conf(folder, (host, port, block_port), secret), folder, "", 1, 0.0))
    print(json.dumps(asdict(facts(context, folder))), flush=True)
    sys.stdin.read()
    context.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
