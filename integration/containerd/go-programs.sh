#!/bin/sh
# go-programs.sh crictl|ocicni: builds the Go programs of that directory into target/crictl or target/ocicni, in the
# versions of their module files. Nothing is built when these programs are there.
set -eu
cd "$(dirname "$0")/../.."
case ${1:-} in
crictl | ocicni) ;;
*)
    echo "usage: go-programs.sh crictl|ocicni" >&2
    exit 2
    ;;
esac

module=integration/containerd/$1
built=$(pwd)/target/$1
if [ -n "${CARGO_TARGET_DIR:-}" ]; then built=$(realpath -m "$CARGO_TARGET_DIR")/$1; fi
if cat "$module"/* | cmp -s - "$built/sources"; then exit 0; fi
go=go
if ! command -v go >/dev/null; then
    # It fetches the Go of go.mod.
    export GOTOOLCHAIN=auto
    go=$(pwd)/target/tools/debian/usr/lib/go-1.24/bin/go
    [ -x "$go" ] || integration/debian-unpack.sh target/tools/debian trixie golang-1.24-go golang-1.24-src
fi

# build PROGRAM ARGUMENT...
build() {
    program=$1
    shift
    CGO_ENABLED=0 nice -n 10 "$go" build -C "$module" -mod=readonly -trimpath -ldflags='-s -w' \
        -o "$built/$program" "$@"
}

rm -rf "$built"
mkdir -p "$built"
case $1 in
crictl) build crictl sigs.k8s.io/cri-tools/cmd/crictl ;;
ocicni)
    build libcni-1.3 .
    build libcni-1.2 -modfile=libcni-1.2.mod .
    ;;
esac
cat "$module"/* >"$built/sources"
