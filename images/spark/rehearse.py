"""Creates the class data archives by running a small job with a driver and an executor, as on Kubernetes.

A fake API server in this process knows one pod, the driver's. For an executor's pod it starts the image's entrypoint
with the pod's environment. Both JVMs dump their loaded classes at exit.
"""

import json
import os
import re
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FOLDER = "/opt/stele-jvm"
NAMESPACE = "rehearsal"
EXECUTOR_SECONDS_MAX = 300.0
SECRET = "/tmp/rehearsal-secret"
executors = []
watched = []


def archive(name):
    return f"-XX:ArchiveClassesAtExit={FOLDER}/{name}.jsa"


def start_executor(pod):
    """Start an executor's process, as a kubelet would."""
    container = pod["spec"]["containers"][0]
    env = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    env |= {"SPARK_EXECUTOR_POD_IP": "127.0.0.1", "SPARK_EXECUTOR_POD_NAME": pod["metadata"]["name"]}
    env["STELE_ARCHIVE_OPTIONS"] = archive("executor")
    executors.append(subprocess.Popen(["/opt/entrypoint.sh", "executor"], env=os.environ | env))


class Handler(BaseHTTPRequestHandler):
    """The part of the API server that Spark uses."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def answer(self, body, status=200):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if "watch=true" in self.path:
            # The client tries a web socket first, and falls back when the answer is 200.
            return self.answer({}) if self.headers.get("Upgrade") else self.watch()
        name = re.search(r"/pods/([^/?]+)", self.path)
        if name:
            known = [pod for pod in watched if pod["metadata"]["name"] == name[1]]
            return self.answer(known[-1] if known else running({"metadata": {"name": name[1]}}))
        return self.answer({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": watched})

    def watch(self):
        """Send each executor's pod once, then keep the stream open until the driver exits."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        told = 0
        try:
            while True:
                for pod in watched[told:]:
                    line = json.dumps({"type": "MODIFIED", "object": pod}).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
                    told += 1
                self.wfile.flush()
                time.sleep(0.1)
        except OSError:
            return

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        made = running(body) if body.get("kind") == "Pod" else body
        if body.get("kind") == "Pod":
            watched.append(made)
            start_executor(made)
        self.answer(made, 201)

    def do_PATCH(self):
        """Handle labels on pods and applied services; Spark ignores the response."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        self.answer(running(body) if "/pods/" in self.path and "metadata" in body else body)

    do_PUT = do_PATCH

    def do_DELETE(self):
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        self.answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})


def running(pod):
    meta = {"namespace": NAMESPACE, "uid": "1", "resourceVersion": "1", "creationTimestamp": "2020-01-01T00:00:00Z"}
    ready = [{"type": "Ready", "status": "True"}]
    status = {"phase": "Running", "podIP": "127.0.0.1", "containerStatuses": [], "conditions": ready}
    made = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": []}, **pod, "status": status}
    return {**made, "metadata": {**meta, **pod["metadata"]}}


def work(number):
    import http.client  # noqa: F401  as the copy function does

    return number, os.getpid()


def main():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # The host name of a build machine may not be resolvable.
    os.environ |= {"STELE_ARCHIVE_OPTIONS": archive("driver"), "SPARK_LOCAL_IP": "127.0.0.1"}
    with open(SECRET, "w", encoding="utf-8") as file:
        file.write("of this rehearsal alone")
    from pyspark import SparkConf, SparkContext

    k8s = "spark.kubernetes"
    conf = SparkConf(loadDefaults=False)
    for name, value in {
        "spark.master": f"k8s://http://127.0.0.1:{server.server_address[1]}",
        "spark.app.name": "rehearsal",
        "spark.submit.deployMode": "client",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.scheduler.minRegisteredResourcesRatio": "0",
        "spark.executor.cores": "2",
        "spark.executor.memory": "512m",
        "spark.executor.heartbeatInterval": "5s",
        "spark.network.timeout": "60s",
        "spark.authenticate": "true",
        "spark.authenticate.secret.file": SECRET,
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.authEngineVersion": "2",
        "spark.network.crypto.cipher": "AES/GCM/NoPadding",
        "spark.network.crypto.saslFallback": "false",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.initialExecutors": "1",
        "spark.dynamicAllocation.maxExecutors": "1",
        f"{k8s}.namespace": NAMESPACE,
        f"{k8s}.container.image": "none",
        f"{k8s}.driver.pod.name": "driver",
        f"{k8s}.executor.useDriverPodIP": "false",
        f"{k8s}.executor.disableConfigMap": "true",
        f"{k8s}.driver.service.deleteOnTermination": "false",
        f"{k8s}.driver.ownPersistentVolumeClaim": "false",
        f"{k8s}.executor.podNamePrefix": "rehearsal",
        f"{k8s}.allocation.batch.delay": "200ms",
        f"{k8s}.executor.volumes.persistentVolumeClaim.staging.options.claimName": "claim",
        f"{k8s}.executor.volumes.persistentVolumeClaim.staging.mount.path": "/staging",
    }.items():
        conf.set(name, value)
    context = SparkContext(conf=conf)
    context.setLogLevel("WARN")
    for _ in range(3):
        assert sorted(n for n, _ in context.parallelize(range(4), 4).map(work).collect()) == [0, 1, 2, 3]
    gateway = context._gateway
    context.stop()
    for executor in executors:
        executor.wait(EXECUTOR_SECONDS_MAX)
    # The JVM exits, and writes its archive, at the end of its standard input.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(EXECUTOR_SECONDS_MAX)
    for name in ("driver", "executor"):
        print(name, os.path.getsize(f"{FOLDER}/{name}.jsa") >> 20, "MiB")


if __name__ == "__main__":
    main()
