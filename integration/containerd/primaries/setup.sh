#!/bin/sh
# Builds other owners' agents and plugins from the Go modules of these directories into target/primaries: flanneld, its
# CNI plugin, and the part of Cilium's agent that writes its conf file. kindnetd, Multus and Calico's installer
# are not built: the tests take them from $GYBE_PRIMARIES, or simulate what they write.
set -eu
cd "$(dirname "$0")/../../.."
# shellcheck source=integration/setup-lock.sh
. integration/setup-lock.sh

modules=integration/containerd/primaries
built=$PWD/target/primaries
if [ -n "${CARGO_TARGET_DIR:-}" ]; then built=$(realpath -m "$CARGO_TARGET_DIR")/primaries; fi

# build DIRECTORY PROGRAM PACKAGE
build() {
    if [ -x "$built/$2" ] && cat "$modules/$1"/go.* | cmp -s - "$built/$2.sources"; then return; fi
    mkdir -p "$built"
    echo "building $2"
    nice -n 19 integration/go.sh build -C "$modules/$1" -mod=readonly -trimpath -ldflags='-s -w' -o "$built/$2" "$3"
    cat "$modules/$1"/go.* >"$built/$2.sources"
}

# flanneld's udp backend is C.
build flannel flanneld github.com/flannel-io/flannel
export CGO_ENABLED=0
build flannel-plugin flannel github.com/containernetworking/plugins/plugins/meta/flannel
build cilium cilium-conf .
