#!/bin/bash
# Makes the file system of a kind node in $ROOT (a copy of a small Debian) out of packages and kind's own files, without
# our programs. Wants: ROOT, KIND (unpacked module of kind), VERSION (of Kubernetes, "v1.x.y").
set -euo pipefail
FILES=$KIND/images/base/files

cp /etc/resolv.conf "$ROOT/etc/resolv.conf"
# No service is to start inside the chroot.
printf '#!/bin/sh\nexit 101\n' > "$ROOT/usr/sbin/policy-rc.d"; chmod 755 "$ROOT/usr/sbin/policy-rc.d"
export DEBIAN_FRONTEND=noninteractive
chroot "$ROOT" apt-get -qq update
chroot "$ROOT" apt-get -qq install -y --no-install-recommends systemd ethtool libseccomp2 pigz bash curl jq \
  util-linux mount e2fsprogs socat containerd runc containernetworking-plugins
rm -f "$ROOT/usr/sbin/policy-rc.d"

# kind's own files: entrypoint, systemd units, containerd's configuration.
cp -r "$FILES/usr/local/bin/." "$ROOT/usr/local/bin/"
mkdir -p "$ROOT/kind/bin" "$ROOT/kind/manifests"; cp -r "$FILES/kind/." "$ROOT/kind/"
for f in crictl.yaml default/kubelet sysctl.d/10-network-security.conf sysctl.d/10-network-magic.conf containerd/config.toml; do
  install -D -m644 "$FILES/etc/$f" "$ROOT/etc/$f"
done
mkdir -p "$ROOT/etc/systemd/system/multi-user.target.wants"; cp -r "$FILES/etc/systemd/system/." "$ROOT/etc/systemd/system/"
chmod -R u+w "$ROOT/kind" "$ROOT/etc/systemd" "$ROOT/usr/local/bin"
chmod 755 "$ROOT"/usr/local/bin/* "$ROOT/kind" "$ROOT/kind/bin" "$ROOT"/kind/bin/* "$ROOT/kind/manifests"
find "$ROOT/etc/systemd/system" -type f -exec chmod 644 {} +
find "$ROOT/etc/systemd/system" -type d -exec chmod 755 {} +

# The same pruning of units as in kind's own Dockerfile: a container has no devices, no terminals, no fstab.
U=$ROOT/lib/systemd/system
find "$U/sysinit.target.wants/" -name systemd-tmpfiles-setup.service -delete
rm -f "$U"/multi-user.target.wants/* "$ROOT"/etc/systemd/system/*.wants/* "$U"/local-fs.target.wants/* \
  "$U"/sockets.target.wants/*udev* "$U"/sockets.target.wants/*initctl* "$U"/basic.target.wants/*
echo ReadKMsg=no >> "$ROOT/etc/systemd/journald.conf"
ln -sf /usr/lib/systemd/systemd "$ROOT/sbin/init"
for u in kubelet containerd undo-mount-hacks; do
  ln -sf "/etc/systemd/system/$u.service" "$ROOT/etc/systemd/system/multi-user.target.wants/$u.service"
done
ln -sf /dev/null "$ROOT/etc/systemd/system/systemd-binfmt.service"

mkdir -p "$ROOT/etc/kubernetes/manifests" "$ROOT/opt/cni/bin" "$ROOT/var/local-path-provisioner"
cp "$ROOT"/usr/lib/cni/{host-local,loopback,ptp,portmap,bridge} "$ROOT/opt/cni/bin/"
ln -sf /usr/bin/containerd "$ROOT/usr/local/bin/containerd"; ln -sf /usr/bin/ctr "$ROOT/usr/local/bin/ctr"
chroot "$ROOT" ctr oci spec \
  | jq '.hooks.createContainer[.hooks.createContainer|length] |= . + {"path": "/kind/bin/mount-product-files.sh"} | del(.process.rlimits)' \
  > "$ROOT/etc/containerd/cri-base.json"

# Two changes to kind's own files. Machines without CAP_SYS_RESOURCE cannot lower an OOM score; and the automatic
# choice of iptables takes the legacy flavour in an empty network namespace while the pods' images use nft.
sed -i 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' "$ROOT/etc/containerd/config.toml"
sed -i 's/^    mode=legacy$/    mode=nft/' "$ROOT/usr/local/bin/entrypoint"

for d in usr/share/doc usr/share/man usr/share/locale usr/share/info var/cache/apt var/lib/apt/lists var/log var/cache/debconf usr/lib/cni; do
  rm -rf "${ROOT:?}/$d"/*
done
printf '%s' "$VERSION" > "$ROOT/kind/version"
