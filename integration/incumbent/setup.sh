#!/bin/sh
# Builds Istio's own programs, istio-cni and pilot-agent (which contains istio-iptables), into target/incumbent, in the
# version of go.mod. Nothing is built when that version is there. Some five minutes of processor time, once.
set -eu
cd "$(dirname "$0")/../.."

built=$(pwd)/target/incumbent
if [ -n "${CARGO_TARGET_DIR:-}" ]; then built=$(realpath -m "$CARGO_TARGET_DIR")/incumbent; fi
if cmp -s integration/incumbent/go.sum "$built/go.sum"; then exit 0; fi
if ! command -v go >/dev/null; then
    echo "there is no go; install Go 1.26 or newer, see go.mod in integration/incumbent" >&2
    exit 1
fi
mkdir -p "$built"
# The tags of Istio's own build of these programs.
CGO_ENABLED=0 nice -n 10 go build -C integration/incumbent -p 1 -trimpath -ldflags='-s -w' \
    -tags agent,disable_pgv,grpcnotrace,retrynotrace -o "$built/" \
    istio.io/istio/cni/cmd/istio-cni istio.io/istio/pilot/cmd/pilot-agent
cp integration/incumbent/go.sum "$built/go.sum"
