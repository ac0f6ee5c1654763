"""A service that writes down what it is told, installed in a folder of its own as pip would do it.

`fail-METHOD` and `slow-METHOD` in its folder make a method raise, or take half a minute.
"""

import json
import os
from pathlib import Path
from typing import Any

SOURCE = '''
import json, os, pathlib, time

FOLDER = pathlib.Path(os.environ["RECORDER"])


class Recorder:
    def start(self, context):
        self.context = context
        self.note("start")

    def stop(self):
        self.note("stop")

    def note(self, what, event=None, **more):
        if event is not None:
            more |= {
                "endpoint": event.endpoint.value,
                "partition": event.partition,
                "indexes": [event.current_replica_index, event.new_replica_index],
                "type": event.type.value,
                "id": event.id,
            }
        with (FOLDER / (self.context.member + ".jsonl")).open("a") as file:
            file.write(json.dumps({"what": what} | more) + "\\n")
        if (FOLDER / ("slow-" + what)).exists():
            time.sleep(30)
        if (FOLDER / ("fail-" + what)).exists():
            raise RuntimeError("told to fail")

    def before_migration(self, event):
        self.note("before", event)

    def prepare_replication(self, event, namespace=""):
        self.note("prepare", event)
        state = (FOLDER / "state").read_bytes()
        return {b"from": self.context.member.encode(), b"gone": None, b"state": state}

    def commit_migration(self, event):
        entries = [[k.decode(), v.decode()] for k, v in self.context.entries(event.partition)]
        self.note("commit", event, entries=entries, serves=self.context.serves(event.partition))

    def rollback_migration(self, event):
        self.note("rollback", event)


class Boxes(Recorder):
    """With namespaces; what it stores says of which."""

    def note(self, what, event=None, **more):
        super().note("boxes-" + what, event, **more)

    def namespaces(self, event):
        self.note("namespaces", event)
        return ["red", "blue"]

    def prepare_replication(self, event, namespace=""):
        return {b"of": namespace.encode()}


class Moves(Recorder):
    """Takes the entries of clients that come and go."""

    def entries_moved(self, partition, keyspace, keys, arrived):
        text = sorted(key.decode() for key in keys)
        self.note("arrived" if arrived else "departed", partition=partition, keyspace=keyspace, keys=text)

    def entries_expired(self, partition, keyspace, keys):
        text = sorted(key.decode() for key in keys)
        self.note("expired", partition=partition, keyspace=keyspace, keys=text)


class Broken:
    def __init__(self):
        raise RuntimeError("cannot be made")


class Half:
    def start(self, context):
        return
'''


def install(folder: Path, **services: str) -> dict[str, str]:
    """Make the package with these entry points (name: class); the environment of a member that has it."""
    site = folder / "site"
    info = site / "recorder-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "recorder.py").write_text(SOURCE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: recorder\nVersion: 1.0\n")
    names = services or {"recorder": "Recorder"}
    lines = "".join(f"{name.replace('_', '-')} = recorder:{kind}\n" for name, kind in names.items())
    (info / "entry_points.txt").write_text("[stele.services]\n" + lines)
    told = folder / "told"
    told.mkdir()
    (told / "state").write_text("first")
    return site_environment(site) | {"RECORDER": str(told)}


def site_environment(site: Path) -> dict[str, str]:
    """That of a process which finds what is installed in `site`, besides what it finds anyway."""
    paths = [str(site), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def heard(folder: Path, member: int, partition: int | None = None) -> list[dict[str, Any]]:
    """What the recorder of a member wrote down, of one partition if one is given."""
    path = folder / "told" / f"m{member}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [each for each in lines if partition is None or each.get("partition") == partition]


def story(folder: Path, member: int, partition: int) -> list[tuple[str, str, list[int], str]]:
    return [
        (each["what"], each["endpoint"], each["indexes"], each["type"])
        for each in heard(folder, member, partition)
    ]
