#!/bin/sh
# setup.sh [COMMIT...]: builds what the cluster runs and this machine has not: etcd and Kubernetes' programs as Go
# modules, once, into target/cluster, and Gybe's programs of those commits. integration/containerd/setup.sh installs
# containerd, runc and the CNI plugins.
set -eu
cd "$(dirname "$0")/../.."

into=$PWD/target/cluster
modules=integration/cluster/kubernetes
mkdir -p "$into"

if ! cmp -s $modules/go.sum "$into/go.sum"; then
    if ! command -v go >/dev/null; then
        echo "the cluster's programs are built with Go $(sed -n 's/^go //p' $modules/go.mod) or later: https://go.dev/dl" >&2
        exit 1
    fi
    # The kubelet reports this version; without it, v0.0.0.
    version=$(go list -C $modules -mod=readonly -m -f '{{.Version}}' k8s.io/kubernetes)
    packages=$(go list -C $modules -mod=readonly tool)
    for package in $packages; do
        name=${package##*/}
        # The program at the root of etcd's module.
        [ "$package" != go.etcd.io/etcd/server/v3 ] || name=etcd
        echo "building $name of Kubernetes $version: $package"
        CGO_ENABLED=0 go build -C $modules -mod=readonly \
            -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$into/$name" "$package"
    done
    cp $modules/go.sum "$into/"
fi

for commit in "$@"; do
    clone=$into/clones/$commit
    [ ! -x "$clone/dist/gybe-cni" ] || continue
    mkdir -p "$clone" "$into/build"
    # Cargo compiles what is newer than its last build there, so the files get the time of now, and clones do not share
    # the directory of builds with this tree.
    git archive "$commit" | tar -xm -C "$clone"
    ln -sfn "$into/build" "$clone/target"
    make -C "$clone" build
done
