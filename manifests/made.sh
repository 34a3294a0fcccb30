#!/bin/sh
# Writes what kustomize makes of each overlay to target/manifests/PLATFORM.yaml. Takes the kustomize
# that is installed, or kubectl's; where there is neither, builds one with Go.
set -eu
cd "$(dirname "$0")/.."

version=v5.7.1
tools="$PWD/target/tools"

if command -v kustomize >/dev/null 2>&1; then
    build() { kustomize build "$1"; }
elif kubectl kustomize --help >/dev/null 2>&1; then
    build() { kubectl kustomize "$1"; }
else
    if [ ! -x "$tools/kustomize" ]; then
        if ! command -v go >/dev/null 2>&1; then
            echo "these tests need kustomize, kubectl, or Go to build kustomize with" >&2
            echo "install one: https://kubectl.docs.kubernetes.io/installation/kustomize" >&2
            exit 1
        fi
        GOBIN="$tools" GOFLAGS=-buildvcs=false go install "sigs.k8s.io/kustomize/kustomize/v5@$version"
    fi
    build() { "$tools/kustomize" build "$1"; }
fi

mkdir -p target/manifests
rm -f target/manifests/*.yaml
for overlay in manifests/overlays/*/; do
    platform=$(basename "$overlay")
    build "$overlay" >"target/manifests/$platform.yaml"
done
