#!/bin/sh
# setup.sh [mesh]: builds Istio's own programs, istio-cni, its agent (install-cni) and pilot-agent (which contains
# istio-iptables), into target/incumbent, in the version of go.mod; with `mesh` also istiod (pilot-discovery), and a link
# to the module, which has the charts. Nothing is built when that version is there. Some five minutes of processor time,
# once, and as many for istiod.
# With ISTIO=VERSION, of the module istio.io/istio, that version, into target/incumbent/VERSION.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=integration/setup-lock.sh
. integration/setup-lock.sh

built=$(pwd)/target/incumbent
if [ -n "${CARGO_TARGET_DIR:-}" ]; then built=$(realpath -m "$CARGO_TARGET_DIR")/incumbent; fi
module=integration/incumbent mode=-mod=readonly
# The tags of Istio's own build of these programs.
agent=agent,disable_pgv,grpcnotrace,retrynotrace server=vtprotobuf,disable_pgv

# The versions of everything else are those of Istio's own module, except the replaced ones.
if [ -n "${ISTIO:-}" ]; then
    built=$built/$ISTIO
    module=$built/module mode=-mod=mod
    if [ ! -e "$module/go.sum" ]; then
        mkdir -p "$module"
        sed '/^require (/,/^)/d' integration/incumbent/go.mod >"$module/go.mod"
        echo "require istio.io/istio $ISTIO" >>"$module/go.mod"
        # Completes go.mod and go.sum.
        for tags in "$agent" "$server"; do
            integration/go.sh list -C "$module" $mode -deps -tags "$tags" tool >/dev/null || { rm -f "$module/go.sum" && exit 1; }
        done
    fi
fi

# build STAMP TAGS PROGRAM...
build() {
    stamp=$built/$1 tags=$2
    shift 2
    if cmp -s "$module/go.sum" "$stamp"; then return; fi
    mkdir -p "$built"
    echo "building $*"
    CGO_ENABLED=0 nice -n 10 integration/go.sh build -C "$module" $mode -p 1 -trimpath -ldflags='-s -w' \
        -tags "$tags" -o "$built/" "$@"
    cp "$module/go.sum" "$stamp"
}

build go.sum "$agent" istio.io/istio/cni/cmd/istio-cni istio.io/istio/pilot/cmd/pilot-agent
build install-cni.sum "$agent" istio.io/istio/cni/cmd/install-cni
if [ "${1:-}" = mesh ]; then
    build pilot-discovery.sum "$server" istio.io/istio/pilot/cmd/pilot-discovery
    ln -sfn "$(integration/go.sh list -C "$module" $mode -m -f '{{.Dir}}' istio.io/istio)" "$built/istio"
    version=$(integration/go.sh list -C "$module" $mode -m -f '{{.Version}}' istio.io/istio)
    echo "$(cat "$built/istio/VERSION"), module istio.io/istio $version" >"$built/version"
fi
