#!/bin/sh
# tool.sh PROGRAM: prints the path of a program that checks, packs or publishes. An installed helm, kustomize or promtool
# is used if it is new enough. Otherwise the program is built with Go below target/tools, where Debian 12's promtool is
# unpacked.
set -eu
cd "$(dirname "$0")/.."
# shellcheck source=integration/setup-lock.sh
. integration/setup-lock.sh
tools=$PWD/target/tools

case $1 in
actionlint) module=github.com/rhysd/actionlint/cmd/actionlint@v1.7.12 ;;
cosign) module=github.com/sigstore/cosign/v3/cmd/cosign@v3.1.3 ;;
helm)
    module=helm.sh/helm/v3/cmd/helm@v3.19.5
    ! helm version --short 2>/dev/null | grep -Eq '^v(3\.(1[4-9]|[2-9][0-9])|[4-9])' || exec command -v helm
    ;;
kustomize)
    module=sigs.k8s.io/kustomize/kustomize/v5@v5.7.1
    ! kustomize version 2>/dev/null | grep -Eq 'v([5-9]|[1-9][0-9]+)\.' || exec command -v kustomize
    ;;
nfpm) module=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2 ;;
promtool)
    ! command -v promtool || exit 0
    [ -x "$tools/prometheus/usr/bin/promtool" ] ||
        integration/debian-unpack.sh "$tools/prometheus" bookworm prometheus >&2
    echo "$tools/prometheus/usr/bin/promtool"
    exit
    ;;
registry) module=github.com/distribution/distribution/v3/cmd/registry@v3.1.2 ;;
*)
    echo "tool.sh: there is no program $1" >&2
    exit 2
    ;;
esac
# The version is a part of the path, so that another one is built.
built=$tools/$1-${module##*@}
if [ ! -x "$built" ]; then
    GOBIN="$built.new" GOFLAGS=-buildvcs=false CGO_ENABLED=0 nice -n 10 integration/go.sh install "$module" >&2
    mv "$built.new"/* "$built"
    rmdir "$built.new"
fi
echo "$built"
