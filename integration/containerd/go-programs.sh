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

# shellcheck source=integration/setup-lock.sh
. integration/setup-lock.sh

module=integration/containerd/$1
built=$(pwd)/target/$1
if [ -n "${CARGO_TARGET_DIR:-}" ]; then built=$(realpath -m "$CARGO_TARGET_DIR")/$1; fi
if cat "$module"/* | cmp -s - "$built/sources"; then exit 0; fi
# build PROGRAM ARGUMENT...
build() {
    program=$1
    shift
    echo "building $program"
    CGO_ENABLED=0 nice -n 10 integration/go.sh build -C "$module" -mod=readonly -trimpath -ldflags='-s -w' \
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
