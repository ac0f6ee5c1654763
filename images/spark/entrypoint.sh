#!/bin/bash
# Starts what a container of this image is for. Spark on Kubernetes gives the first argument:
#   executor      a Spark executor; Spark passes its settings as SPARK_EXECUTOR_*, SPARK_JAVA_OPT_<n> and others
#   check         whether a JVM takes the archives of classes: 1 and its reason when it does not
#   anything else is run as it stands; a driver of our own is plain Python that makes a SparkContext
set -euo pipefail

executor() {
  # Spark numbers the options of the JVM; each may hold spaces, so none may be split.
  local options=() count=0 name
  while name=SPARK_JAVA_OPT_$count && [ -n "${!name+set}" ]; do
    options+=("${!name}")
    count=$((count + 1))
  done
  # Spark takes the secret from its file only when it knows that this is Kubernetes. It would hear that from the
  # driver, which speaks to nobody without the secret; the driver's own setting then takes the place of this one.
  # Few classes, short life: the first compiler and the serial collector start fastest. The heap grows as needed.
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
    # With -Xshare:on a JVM does not start without what it is given.
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
