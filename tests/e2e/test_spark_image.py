"""The image of copy jobs on a node: its JVMs take the archives of classes that were made with it."""

import subprocess

import pytest

from e2e.cluster import images, kind

POD = "check-spark-image"
SECONDS_MAX = 240


@pytest.mark.cluster
def test_a_jvm_on_a_node_takes_the_archives_of_classes() -> None:
    image = images.build(["spark"])["spark"]
    kind.load(image)
    delete = ["kubectl", "delete", "pod", POD, "--ignore-not-found", "--now"]
    run = ["kubectl", "run", POD, f"--image={image}", "--image-pull-policy=IfNotPresent", "--restart=Never"]
    words = ["--attach", "--rm", "--quiet", "--command", "--", "/opt/entrypoint.sh", "check"]
    subprocess.run(delete, env=kind.env(), check=True, timeout=SECONDS_MAX)
    try:
        told = subprocess.run(
            [*run, *words], env=kind.env(), capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
    finally:
        subprocess.run(delete, env=kind.env(), check=True, timeout=SECONDS_MAX)
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stdout.splitlines() == ["driver.jsa is used", "executor.jsa is used"]
