#!/bin/sh
# Builds each overlay with kustomize into target/manifests/PLATFORM.yaml, and the default overlay with each component
# into with-COMPONENT.yaml. Uses the installed kustomize or kubectl's if its version is 5 or later. Otherwise builds
# kustomize with Go: the installed one, or Debian 13's, which it unpacks below target/tools.
set -eu
cd "$(dirname "$0")/.."

version=v5.7.1
# kustomize's go.mod requires 1.22.7; Debian 12 has 1.19.
required_go='go1\.(2[3-9]|[3-9][0-9])'
tools="$PWD/target/tools"
of_version_5='v([5-9]|[1-9][0-9]+)\.'

go_of_debian() {
    go="$tools/debian/usr/lib/go-1.24/bin/go"
    [ -x "$go" ] || integration/debian-unpack.sh "$tools/debian" trixie golang-1.24-go golang-1.24-src
}

build_kustomize() {
    go=go
    go version 2>/dev/null | grep -Eq "$required_go" || go_of_debian
    GOBIN="$tools" GOFLAGS=-buildvcs=false "$go" install "sigs.k8s.io/kustomize/kustomize/v5@$version"
}

if kustomize version 2>/dev/null | grep -Eq "$of_version_5"; then
    build() { kustomize build "$1"; }
elif kubectl version --client 2>/dev/null | grep -Eq "^Kustomize Version: $of_version_5"; then
    build() { kubectl kustomize "$1"; }
else
    [ -x "$tools/kustomize" ] || build_kustomize
    build() { "$tools/kustomize" build "$1"; }
fi

mkdir -p target/manifests
rm -f target/manifests/*.yaml
for overlay in manifests/overlays/*/; do
    platform=$(basename "$overlay")
    build "$overlay" >"target/manifests/$platform.yaml"
done
for component in manifests/components/*/; do
    name=$(basename "$component")
    mkdir -p "target/components/$name"
    # The same as an operator's overlay.
    cat >"target/components/$name/kustomization.yaml" <<END
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../../../manifests/overlays/default]
components: [../../../$component]
END
    build "target/components/$name" >"target/manifests/with-$name.yaml"
done
