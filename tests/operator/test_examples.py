"""The manifests in examples/, applied to a real API server."""

import pytest
import yaml

from e2e.cluster.control_plane import REPOSITORY, ControlPlane

pytestmark = pytest.mark.control_plane

EXAMPLES = REPOSITORY / "examples"
MANIFESTS = sorted(path for path in EXAMPLES.glob("*.yaml") if "generateName" not in path.read_text())
OF_SERVICES = sorted(EXAMPLES.glob("quota/*.yaml"))


@pytest.mark.parametrize("path", MANIFESTS + OF_SERVICES, ids=lambda path: path.name)
def test_an_example_is_stored_as_it_is_written(control_plane: ControlPlane, namespace: str, path) -> None:  # type: ignore[no-untyped-def]
    control_plane.kubectl("apply", "-n", namespace, "-f", str(path))
    again = control_plane.kubectl("apply", "-n", namespace, "-f", str(path))
    documents = list(yaml.safe_load_all(path.read_text()))
    assert again.count("unchanged") == len(documents)
    for wanted in documents:
        stored = control_plane.get(namespace, wanted["kind"].lower(), wanted["metadata"]["name"])
        assert wanted["spec"].keys() <= stored["spec"].keys()


def test_each_setting_of_keyspaces_has_an_example() -> None:
    """That is about what clients notice; the mode and what belongs to it are in one of them."""
    texts = [document for path in MANIFESTS for document in yaml.safe_load_all(path.read_text())]
    used = {name for each in texts if each["kind"] == "Keyspace" for name in each["spec"]}
    assert used >= {"ttl", "quota", "reads", "nearCache", "onDelete", "replication", "mode", "localCache"}
