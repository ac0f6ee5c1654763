#!/bin/bash
# Starts the process of a container of this image. Spark on Kubernetes sets the first argument:
#   executor      a Spark executor; Spark passes its settings as SPARK_EXECUTOR_*, SPARK_JAVA_OPT_<n> and others
#   check         check that a JVM accepts the class data archives; exits with 1 and the reason if not
#   Anything else is executed as it is; Stele's drivers are plain Python that creates a SparkContext.
set -euo pipefail

executor() {
  # Spark numbers the JVM options; each may contain spaces, so none may be split.
  local options=() count=0 name
  while name=SPARK_JAVA_OPT_$count && [ -n "${!name+set}" ]; do
    options+=("${!name}")
    count=$((count + 1))
  done
  # Spark reads the secret from its file only when spark.master names Kubernetes. The driver would say so, but it
  # accepts no connection without the secret; the driver's setting later replaces this one.
  # Executors are short-lived with few classes: the C1 compiler and the serial collector start fastest. The heap
  # grows as needed.
  exec "$JAVA_HOME/bin/java" \
    ${STELE_EXECUTOR_JAVA_OPTIONS--XX:+UseSerialGC -XX:TieredStopAtLevel=1} \
    ${STELE_ARCHIVE_OPTIONS--XX:SharedArchiveFile=/opt/stele-jvm/executor.jsa} \
    "${options[@]}" -Dspark.master=k8s://https://kubernetes.default.svc -Xms"${STELE_EXECUTOR_HEAP_MIN:-64m}" -Xmx"$SPARK_EXECUTOR_MEMORY" @/opt/stele-jvm/classpath \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID:-0}" --podName "$SPARK_EXECUTOR_POD_NAME"
}

check() {
  for archive in driver executor; do
    # With -Xshare:on a JVM does not start without its archive.
    "$JAVA_HOME/bin/java" -XX:+UseSerialGC -Xshare:on -XX:SharedArchiveFile=/opt/stele-jvm/$archive.jsa \
      @/opt/stele-jvm/classpath -version > /tmp/check.log 2>&1 || {
      echo "$archive.jsa is not used:"
      cat /tmp/check.log
      exit 1
    }
    echo "$archive.jsa is used"
  done
}

case "${1:-}" in
  executor) executor ;;
  check) check ;;
  *) exec "$@" ;;
esac
