#!/bin/bash
# Unpacks the images of $TAR into the containerd store of the node's file system, so that nodes start without pulling
# or unpacking. Wants: ROOT, TAR, RUN (a short path for sockets). Uses a containerd of its own that ends with this script.
set -euo pipefail
STORE=$ROOT/var/lib/containerd SOCKET=$RUN/preload.sock
rm -rf "$STORE" "$RUN/preload" "$SOCKET"; mkdir -p "$STORE" "$RUN/preload"
printf 'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n' > "$RUN/preload/config.toml"
containerd -c "$RUN/preload/config.toml" --root "$STORE" --state "$RUN/preload/state" --address "$SOCKET" &
DAEMON=$!
trap 'kill $DAEMON 2>/dev/null || true; wait $DAEMON || true; rm -rf "$RUN/preload" "$SOCKET"* "$STORE/tmpmounts"' EXIT
for _ in $(seq 100); do [ -S "$SOCKET" ] && break; sleep 0.1; done
ctr -a "$SOCKET" -n k8s.io images import --all-platforms "$TAR"
# The layers are unpacked into snapshots: drop the big blobs, keep manifests and configurations.
find "$STORE/io.containerd.content.v1.content/blobs/sha256" -type f -size +64k -printf 'sha256:%f\n' \
  | xargs ctr -a "$SOCKET" -n k8s.io content rm
sleep 2  # containerd's garbage collection is scheduled, not immediate
