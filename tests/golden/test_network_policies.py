"""The NetworkPolicies of a cluster as YAML, which `--rewrite` writes; read the diff."""

import json
from pathlib import Path

import pytest
import yaml

from stele.master.network_rules import network_policies
from tests.master.test_network_rules import PEERS, cluster

FOLDER = Path(__file__).parent / "network-policies"
CASES = {"without-peers": cluster("demo", enabled=True), "with-peers": cluster("demo", enabled=True, **PEERS)}


@pytest.mark.parametrize("name", CASES)
def test_policies(name: str, rewrite: bool) -> None:
    path, made = FOLDER / f"{name}.yaml", network_policies(CASES[name], "stele")
    if rewrite:
        # A copy by JSON has no object twice, which YAML would show as an alias.
        path.write_text(yaml.safe_dump_all(json.loads(json.dumps(made)), sort_keys=False))
    assert list(made) == list(yaml.safe_load_all(path.read_text()))
