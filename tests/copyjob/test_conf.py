"""What a Spark application is started with, and the copier's settings."""

import json
import re
import subprocess
import sys
from dataclasses import fields

import pytest

from stele.adapters.logs import LogSettings
from stele.copyjob.conf import pod_template, spark_conf
from stele.copyjob.settings import Settings, read_settings
from stele.core.control.commands import CopyItem
from stele.errors import BadInput
from stele.wire.copy.jobs import CopyJob

POD = {"POD_IP": "10.0.0.9", "POD_NAME": "demo-copier", "POD_NAMESPACE": "ns", "STELE_SPARK_IMAGE": "image:1"}
JOB = CopyJob("s-1", "demo-1", "data-demo-1", "http://10.0.0.2:7002", "t", (CopyItem(1, 1, 2),))
SERVED = {
    "spark.files",
    "spark.jars",
    "spark.jars.packages",
    "spark.archives",
    "spark.submit.pyFiles",
    "spark.repl.class.outputDir",
}
"""Properties that make a driver serve files; tests/copyjob/test_spark_ports.py shows to whom."""


def test_executors_get_the_destinations_staging_folder_and_nothing_else():
    conf = spark_conf(read_settings(POD), JOB, "/tmp/t.json")
    volumes = {name: value for name, value in conf.items() if ".volumes." in name}
    prefix = "spark.kubernetes.executor.volumes.persistentVolumeClaim.staging"
    assert volumes == {
        f"{prefix}.options.claimName": "data-demo-1",
        f"{prefix}.mount.path": "/staging",
        f"{prefix}.mount.subPath": "staging",
        f"{prefix}.mount.readOnly": "false",
    }
    assert conf["spark.kubernetes.driver.pod.name"] == "demo-copier"
    assert conf["spark.driver.bindAddress"] == conf["spark.driver.host"] == "10.0.0.9"
    assert conf["spark.kubernetes.executor.useDriverPodIP"] == "false"


@pytest.mark.parametrize(
    ("memory", "overhead"), [("896m", "384m"), ("2g", "1536m"), ("100m", "256m"), ("917504k", "384m")]
)
def test_memory_is_that_of_the_whole_pod(memory, overhead):
    job = CopyJob("s-1", "demo-1", "c", "http://h:1", "t", (), memory=memory)
    conf = spark_conf(read_settings(POD), job, "/t")
    assert conf["spark.executor.memory"] == "512m"
    assert conf["spark.executor.memoryOverhead"] == overhead


def test_executors_pull_with_the_secrets_that_the_copier_is_told():
    name = "spark.kubernetes.container.image.pullSecrets"
    assert name not in spark_conf(read_settings(POD | {"STELE_IMAGE_PULL_SECRETS": ""}), JOB, "/t")
    settings = read_settings(POD | {"STELE_IMAGE_PULL_SECRETS": "one,two"})
    assert spark_conf(settings, JOB, "/t")[name] == "one,two"


def test_drivers_and_executors_know_each_other_by_a_secret_that_pods_do_not_show():
    settings = read_settings(POD | {"STELE_SPARK_SECRET": "mine"})
    conf = spark_conf(settings, JOB, "/t")
    assert {name: value for name, value in conf.items() if name.startswith("spark.authenticate")} == {
        "spark.authenticate": "true",
        "spark.authenticate.secret.file": "/etc/stele/spark/secret",
    }
    assert conf["spark.network.crypto.enabled"] == "true"
    assert conf["spark.network.crypto.saslFallback"] == "false"
    pod = json.loads(pod_template(JOB, settings))["spec"]
    (volume,) = pod["volumes"]
    assert volume["secret"]["secretName"] == "mine"
    (mount,) = pod["containers"][0]["volumeMounts"]
    assert (mount["name"], mount["mountPath"], mount["readOnly"]) == (
        volume["name"],
        "/etc/stele/spark",
        True,
    )
    assert volume["secret"]["defaultMode"] == 0o440, "the user of the image is in the group of its volumes"


def test_a_driver_in_local_mode_makes_a_secret_of_its_own():
    """Its ports are on loopback, which every user of the machine reaches."""
    conf = spark_conf(read_settings({"STELE_SPARK_MASTER": "local[2]"}), JOB, "/t")
    assert (conf["spark.authenticate"], conf["spark.network.crypto.enabled"]) == ("true", "true")
    assert "spark.authenticate.secret.file" not in conf


def test_each_claim_may_have_a_staging_folder_of_its_own():
    assert read_settings(POD).staging_of("data-demo-1") == "/staging"
    settings = read_settings(POD | {"STELE_STAGING": "/volumes/{claim}/staging"})
    assert settings.staging_of("data-demo-1") == "/volumes/data-demo-1/staging"


def test_drivers_are_told_of_no_files_since_they_serve_them_without_the_secret():
    for environment in (POD, {"STELE_SPARK_MASTER": "local[2]"}):
        conf = spark_conf(read_settings(environment), JOB, "/t")
        assert not SERVED & set(conf)


def test_spark_is_asked_for_nothing_that_its_account_may_not_do():
    conf = spark_conf(read_settings(POD), JOB, "/t")
    assert conf["spark.kubernetes.executor.disableConfigMap"] == "true"
    assert conf["spark.kubernetes.driver.service.deleteOnTermination"] == "false"
    assert conf["spark.kubernetes.driver.ownPersistentVolumeClaim"] == "false"
    assert conf["spark.kubernetes.authenticate.executor.serviceAccountName"] == "stele-executor"


def test_64_drivers_and_those_that_end_have_ports_of_their_own():
    conf = spark_conf(read_settings(POD), JOB, "/t")
    first, blocks = int(conf["spark.driver.port"]), int(conf["spark.driver.blockManager.port"])
    tried = int(conf["spark.port.maxRetries"]) + 1
    assert tried >= 2 * 64
    assert not set(range(first, first + tried)) & set(range(blocks, blocks + tried))


def test_the_executors_pod_sits_beside_the_member_under_the_restricted_profile():
    pod = json.loads(pod_template(JOB, read_settings(POD)))["spec"]
    (term,) = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"] == {"stele.dev/member": "demo-1"}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_long_destination_still_gives_a_pod_name_that_spark_takes():
    job = CopyJob("s-1", "a" * 39 + "." + "b" * 60, "c", "http://h:1", "t", ())
    prefix = spark_conf(read_settings(POD), job, "/t")["spark.kubernetes.executor.podNamePrefix"]
    assert len(prefix) <= 47
    assert prefix[-1].isalnum()


def test_local_mode_needs_no_pod():
    settings = read_settings({"STELE_SPARK_MASTER": "local[2]"})
    conf = spark_conf(settings, JOB, "/t")
    assert conf["spark.master"] == "local[2]"
    assert not [name for name in conf if "kubernetes" in name or "secret" in name]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"POD_IP": ""}, "POD_IP is not set"),
        ({"STELE_SPARK_IMAGE": ""}, "STELE_SPARK_IMAGE is not set"),
        ({"STELE_SPARK_MASTER": "yarn"}, "STELE_SPARK_MASTER is 'yarn'"),
        ({"STELE_SCRATCH": "/nowhere"}, "STELE_SCRATCH is '/nowhere'; it must be a folder that is there"),
        ({"STELE_DRIVERS_MAX": "²"}, "STELE_DRIVERS_MAX is '²'; it must be a whole number from 1 to 64"),
        ({"STELE_COPIER_PORT": "0"}, "STELE_COPIER_PORT is '0'; it must be a whole number from 1 to 65535"),
        ({"STELE_IMAGE_PULL_POLICY": "no"}, "is 'no'; it must be one of Always, IfNotPresent, Never"),
        ({"STELE_DRIVERS_MAX": "many"}, "STELE_DRIVERS_MAX is 'many'"),
    ],
)
def test_wrong_settings_are_named(change, text):
    with pytest.raises(BadInput, match=text.replace("[", r"\[")):
        read_settings(POD | change)


def _copier(*arguments):
    command = [sys.executable, "-m", "stele.copyjob", *arguments]
    return subprocess.run(command, env={}, capture_output=True, text=True, check=False)


def test_help_lists_every_variable_that_the_copier_reads():
    done = _copier("--help")
    assert done.returncode == 0
    listed = set(re.findall(r"^(?:STELE|POD)_[A-Z_]+", done.stdout, re.MULTILINE))
    declared = (*fields(Settings), *fields(LogSettings))
    assert listed == {field.metadata["variable"] for field in declared if field.metadata}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--nonsense"], "stele-copier: error: unrecognized arguments: --nonsense"),
        (["nonsense"], "stele-copier: error: unrecognized arguments: nonsense"),
        ([], "stele-copier: STELE_SPARK_IMAGE is not set"),
    ],
)
def test_the_copier_refuses_what_it_does_not_know(arguments, text):
    done = _copier(*arguments)
    assert (done.returncode, text in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr
