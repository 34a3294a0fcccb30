#!/bin/sh
# Builds what the cluster runs and this machine has not: etcd and Kubernetes' programs as Go modules, once, into
# target/cluster. integration/containerd/setup.sh installs containerd, runc and the CNI plugins.
set -eu
cd "$(dirname "$0")/kubernetes"

into=${1:-${CARGO_TARGET_DIR:-../../../target}/cluster}
if ! command -v go >/dev/null; then
    echo "the cluster's programs are built with Go: install it (https://go.dev/dl, $(sed -n 's/^go //p' go.mod) or later)" >&2
    exit 1
fi

mkdir -p "$into"
into=$(cd "$into" && pwd)
stamp=$into/.built
[ "$(cat "$stamp" 2>/dev/null)" != "$(cat go.sum)" ] || exit 0

# The kubelet reports this version; without it, v0.0.0.
version=$(sed -n 's/^require k8s.io\/kubernetes //p' go.mod)
flags="-s -w -X k8s.io/component-base/version.gitVersion=$version"
export CGO_ENABLED=0
for package in $(sed -n '/^tool (/,/^)/ s/^\t//p' go.mod); do
    name=${package##*/}
    # The program at the root of etcd's module.
    [ "$package" != go.etcd.io/etcd/server/v3 ] || name=etcd
    echo "building $name ($package)"
    go build -mod=readonly -ldflags "$flags" -o "$into/$name" "$package"
done
cat go.sum >"$stamp"
