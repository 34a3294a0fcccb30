#!/bin/sh
# Builds crictl as a Go module into target/crictl, in the version of go.mod. Nothing is built when that version is there.
set -eu
cd "$(dirname "$0")/../../.."

built=$(pwd)/target/crictl
if [ -n "${CARGO_TARGET_DIR:-}" ]; then built=$(realpath -m "$CARGO_TARGET_DIR")/crictl; fi
if cmp -s integration/containerd/crictl/go.sum "$built/go.sum"; then exit 0; fi
go=go
if ! command -v go >/dev/null; then
    # It fetches the Go of go.mod.
    export GOTOOLCHAIN=auto
    go=$(pwd)/target/tools/debian/usr/lib/go-1.24/bin/go
    [ -x "$go" ] || integration/debian-unpack.sh target/tools/debian trixie golang-1.24-go golang-1.24-src
fi
mkdir -p "$built"
CGO_ENABLED=0 nice -n 10 "$go" build -C integration/containerd/crictl -mod=readonly -trimpath -ldflags='-s -w' \
    -o "$built/" sigs.k8s.io/cri-tools/cmd/crictl
cp integration/containerd/crictl/go.sum "$built/go.sum"
