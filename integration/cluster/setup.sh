#!/bin/sh
# setup.sh [COMMIT...]: builds what the cluster runs and this machine has not: etcd and Kubernetes' programs as Go
# modules, once, into target/cluster, and Gybe's programs of those commits. integration/containerd/setup.sh installs
# containerd, runc and the CNI plugins.
set -eu
cd "$(dirname "$0")/../.."

into=$PWD/target/cluster
modules=integration/cluster/kubernetes
mkdir -p "$into"

# The kubelet reports this version; without it, v0.0.0.
version=$(sed -n 's/^\tk8s.io\/kubernetes //p' $modules/go.mod)

if [ "$(cat "$into/.built" 2>/dev/null)" != "$version" ]; then
    if ! command -v go >/dev/null; then
        echo "the cluster's programs are built with Go $(sed -n 's/^go //p' $modules/go.mod) or later: https://go.dev/dl" >&2
        exit 1
    fi
    for package in $(sed -n '/^tool (/,/^)/ s/^\t//p' $modules/go.mod); do
        name=${package##*/}
        # The program at the root of etcd's module.
        [ "$package" != go.etcd.io/etcd/server/v3 ] || name=etcd
        echo "building $name of Kubernetes $version: $package"
        CGO_ENABLED=0 go build -C $modules -mod=readonly \
            -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$into/$name" "$package"
    done
    echo "$version" >"$into/.built"
fi

for commit in "$@"; do
    clone=$into/clones/$commit
    [ ! -x "$clone/dist/gybe-cni" ] || continue
    mkdir -p "$clone"
    git archive "$commit" | tar -x -C "$clone"
    # The dependencies that are built already.
    ln -sfn "$PWD/target" "$clone/target"
    make -C "$clone" build
done
