#!/bin/sh
# setup.sh [mesh]: builds Istio's own programs, istio-cni and pilot-agent (which contains istio-iptables), into
# target/incumbent, in the version of go.mod; with `mesh` also istiod (pilot-discovery) and istio-cni's agent
# (install-cni). Nothing is built when that version is there. Some five minutes of processor time, once, and as many
# for istiod.
set -eu
cd "$(dirname "$0")/../.."

built=$(pwd)/target/incumbent
if [ -n "${CARGO_TARGET_DIR:-}" ]; then built=$(realpath -m "$CARGO_TARGET_DIR")/incumbent; fi

# build STAMP TAGS PROGRAM...: with the tags of Istio's own build of these programs.
build() {
    stamp=$built/$1 tags=$2
    shift 2
    if cmp -s integration/incumbent/go.sum "$stamp"; then return; fi
    if ! command -v go >/dev/null; then
        echo "there is no go; install Go 1.26 or newer, see go.mod in integration/incumbent" >&2
        exit 1
    fi
    mkdir -p "$built"
    CGO_ENABLED=0 nice -n 10 go build -C integration/incumbent -p 1 -trimpath -ldflags='-s -w' \
        -tags "$tags" -o "$built/" "$@"
    cp integration/incumbent/go.sum "$stamp"
}

build go.sum agent,disable_pgv,grpcnotrace,retrynotrace \
    istio.io/istio/cni/cmd/istio-cni istio.io/istio/pilot/cmd/pilot-agent
if [ "${1:-}" = mesh ]; then
    build pilot-discovery.sum vtprotobuf,disable_pgv istio.io/istio/pilot/cmd/pilot-discovery
    build install-cni.sum vtprotobuf,disable_pgv istio.io/istio/cni/cmd/install-cni
fi
