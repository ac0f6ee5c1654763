"""The image of copy jobs on a node: its JVMs take the archives of classes that were made with it."""

import subprocess

import pytest

from e2e.cluster import images, kind

POD = "check-spark-image"
SECONDS_MAX = 240


def kubectl(*words: str) -> str:
    done = subprocess.run(
        ["kubectl", *words], env=kind.env(), capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.cluster
def test_a_jvm_on_a_node_takes_the_archives_of_classes() -> None:
    image = images.build(["spark"])["spark"]
    kind.load(image)
    kubectl("delete", "pod", POD, "--ignore-not-found", "--now")
    try:
        options = [f"--image={image}", "--image-pull-policy=IfNotPresent", "--restart=Never", "--command"]
        made = kubectl("run", POD, *options, "--", "/opt/entrypoint.sh", "check")
        ended = kubectl("wait", f"pod/{POD}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s")
        told = kubectl("logs", POD)
    finally:
        kubectl("delete", "pod", POD, "--ignore-not-found", "--now")
    assert told.splitlines() == ["driver.jsa is used", "executor.jsa is used"], made + ended + told
    assert "condition met" in ended
