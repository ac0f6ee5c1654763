"""What somebody who forwards the port of a bulk Job's Spark gets from it."""

import json
import os
import subprocess
import sys

from tests import packages
from tests.copyjob.test_spark_ports import RPC_FAILURE, call


def test_spark_of_a_bulk_job_takes_no_message_without_its_secret() -> None:
    """Without authentication it would look for the recipient of the message, which has none here."""
    packages.ensure("default-jdk-headless")
    with subprocess.Popen(
        [sys.executable, "-m", "tests.bulkjob.spark_session"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdin
        assert process.stdout
        lines = (json.loads(line) for line in process.stdout)
        told = next(line for line in lines if "port" in line)
        kind, answer = call(told["port"], bytes.fromhex(told["message"]))
        process.stdin.close()
    assert (kind, b"Unknown challenge message" in answer) == (RPC_FAILURE, True)
