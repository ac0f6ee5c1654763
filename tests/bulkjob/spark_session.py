"""Spark of a bulk Job, as a process of its own: it prints its port, and a message to send there.

It ends with its stdin.
"""

import argparse
import json
import sys

from stele.bulkjob import __main__ as bulkjob
from tests.copyjob.spark_application import ask_settings


def main() -> None:
    """Run until stdin ends."""
    with bulkjob._spark(argparse.Namespace(memory="1g")) as spark:
        context = spark.sparkContext
        port = int(context.getConf().get("spark.driver.port"))
        print(json.dumps({"port": port, "message": ask_settings(context, port).hex()}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
