#!/bin/sh
# setup.sh [COMMIT...]: builds what the cluster runs and this machine has not: etcd and Kubernetes' programs as Go
# modules, once, into target/cluster, and Gybe's programs of those commits. integration/containerd/setup.sh installs
# containerd, runc and the CNI plugins.
# With KUBERNETES=1.30.14 also the programs of that version, into target/cluster/kubernetes-1.30.14; with
# PROGRAMS="kube-apiserver" these alone.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=integration/setup-lock.sh
. integration/setup-lock.sh

into=$PWD/target/cluster
modules=integration/cluster/kubernetes
mkdir -p "$into"

# build MODULE MODE DIRECTORY PACKAGE...: builds programs from a module, with this mode of go(1).
build() {
    module=$1 mode=$2 directory=$3
    shift 3
    # The kubelet reports this version; without it, v0.0.0.
    version=$(integration/go.sh list -C "$module" "$mode" -m -f '{{.Version}}' k8s.io/kubernetes)
    for package in "$@"; do
        name=${package##*/}
        # The program at the root of etcd's module.
        [ "$package" != go.etcd.io/etcd/server/v3 ] || name=etcd
        echo "building $name of Kubernetes $version: $package"
        CGO_ENABLED=0 integration/go.sh build -C "$module" "$mode" \
            -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$directory/$name" "$package"
    done
}

# available MODULE VERSION: downloads a module, and prints its version. Where the module proxy or the checksum database
# does not have it, that is the newest one of the same minor version; without any, nothing is printed.
available() {
    for candidate in "$2" $(integration/go.sh list -m -versions "$1" | tr ' ' '\n' | grep "^${2%.*}\.[0-9]*$" | sort -rV); do
        if integration/go.sh mod download "$1@$candidate" 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
}

# write_module VERSION FILE: writes a module that requires this version of Kubernetes. The versions of everything else
# are those of Kubernetes' own module, except k8s.io/api and the like, which it has as directories: they are modules with
# its minor and patch version. One that is not available is left out, because not every program needs it.
write_module() {
    kubernetes=k8s.io/kubernetes@v$1
    integration/go.sh mod download "$kubernetes"
    requirements=$(integration/go.sh mod download -json "$kubernetes" | sed -n 's/^[[:space:]]*"GoMod": "\(.*\)",$/\1/p')
    {
        printf 'module gybe/integration/cluster/kubernetes\n\n'
        grep '^go ' $modules/go.mod
        echo "require k8s.io/kubernetes v$1"
        for name in $(awk '$1 ~ /^k8s\.io\// && $2 == "v0.0.0" { print $1 }' "$requirements"); do
            staging=$(available "$name" "v0.${1#1.}")
            [ -z "$staging" ] || echo "replace $name => $name $staging"
        done
    } >"$2.new"
    mv "$2.new" "$2"
}

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

if ! cmp -s $modules/go.sum "$into/go.sum"; then
    # shellcheck disable=SC2046 # one package a word
    build $modules -mod=readonly "$into" $(integration/go.sh list -C $modules -mod=readonly tool)
    cp $modules/go.sum "$into/"
fi

if [ -n "${KUBERNETES:-}" ]; then
    other=$into/kubernetes-$KUBERNETES
    mkdir -p "$other/module"
    [ -e "$other/module/go.mod" ] || write_module "$KUBERNETES" "$other/module/go.mod"
    for program in ${PROGRAMS:-kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubectl kubelet}; do
        [ -x "$other/$program" ] || build "$other/module" -mod=mod "$other" "k8s.io/kubernetes/cmd/$program"
    done
    ln -sfn ../etcd "$other/etcd"
fi
