#!/usr/bin/env bash
# release.sh VERSION [IMAGE [SOURCE]]: builds everything of a release in dist/release: the programs for both
# architectures, their image, Debian and RPM packages, what they are made of, the chart, the manifests of each platform,
# an archive for krew, notes and checksums. IMAGE is the name under which the chart and the manifests find the image,
# without a tag; SOURCE the address of the repository (https://github.com/…), which image, chart and krew's manifest
# name.
#
# release.sh --publish VERSION IMAGE: pushes the image of dist/release, and the chart to the repository `charts` beside
# the image's, and signs both, the list of crates of each image, and the checksums. Names and digests: dist/published.
# COSIGN_KEY is a key of cosign; without it cosign gets a certificate for the identity of the caller (in a workflow:
# of the workflow) and writes into the public log. A registry of this machine is reached without TLS.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=build
if [ "${1:-}" = --publish ]; then
    mode=publish
    shift
fi
version=${1:-} image=${2:-gybe} source=${3:-}
into=dist/release

fail() {
    echo "release${version:+ $version}: $1" >&2
    exit 1
}

# packed DIRECTORY NAME...: prints a compressed archive, the same bytes each time.
packed() {
    tar --create --directory "$1" --format ustar --sort name --mtime @0 --owner 0 --group 0 --numeric-owner \
        --mode u=rwX,go=rX "${@:2}" | gzip -9n
}

build() {
    [ -n "$version" ] || fail "no version; run: make release VERSION=x.y.z"
    cargo=$(cargo pkgid --locked -p gybe-installer | sed 's/.*[#@]//')
    [ "$cargo" = "$version" ] || fail "Cargo.toml has version $cargo; set [workspace.package] version and run cargo check"
    other=$(sed -n 's/^ *image: *//p' manifests/base/daemonset.yaml | grep -vxF "gybe:$version" || true)
    [ -z "$other" ] || fail "manifests/base/daemonset.yaml names another image: $(paste -sd" " <<<"$other"); set gybe:$version"
    notes=$(awk -v version="$version" '/^## / { found = $2 == version; next } found' CHANGELOG.md)
    [ -n "$notes" ] || fail "CHANGELOG.md has no section $version; rename \"Unreleased\" to \"$version - YYYY-MM-DD\""

    integration/setup.sh image arm64
    # make installs the target of this machine only where it chooses it.
    flock "$(rustc --print sysroot)" rustup target add x86_64-unknown-linux-musl
    nfpm=$(manifests/tool.sh nfpm)
    rm -rf "$into"
    mkdir -p "$into"
    SOURCE=$source REVISION=$(git rev-parse HEAD)
    export SOURCE REVISION

    images="" replaced="s|{version}|$version|; s|{source}|$source|"
    for target in x86_64-unknown-linux-musl:amd64 aarch64-unknown-linux-musl:arm64; do
        architecture=${target#*:}
        programs=target/releases/$architecture
        make contents "TARGET=${target%:*}" "DIST=$programs"
        for program in gybe gybe-cni; do
            cp "$programs/$program" "$into/$program-linux-$architecture"
        done
        cp "$programs/gybe.cdx.json" "$into/gybe-linux-$architecture.cdx.json"
        cp "$programs/NOTICES" "$into/NOTICES-linux-$architecture"
        images="$images $architecture=$programs"
        for packager in deb rpm; do
            VERSION=$version ARCHITECTURE=$architecture PROGRAMS=$programs SOURCE_DATE_EPOCH=0 \
                "$nfpm" package --config manifests/package/nfpm.yaml --packager "$packager" --target "$into/" >/dev/null
        done
        krew=kubectl-gybe-linux-$architecture.tar.gz
        packed "$programs" LICENSE NOTICES gybe >"$into/$krew"
        replaced="$replaced; s|{$architecture}|$(sha256sum <"$into/$krew" | cut -d' ' -f1)|"
    done
    cp LICENSE "$into/"
    # Without an address there is nothing that krew could download.
    [ -z "$source" ] || sed -e '/^#/d' -e "$replaced" manifests/krew.yaml >"$into/gybe.krew.yaml"
    # shellcheck disable=SC2086 # the list is split into words
    manifests/image.sh "$version" "$into/gybe-$version.oci.tar" $images

    manifests/build.sh
    for overlay in manifests/overlays/*/; do
        platform=$(basename "$overlay")
        sed "s|image: gybe:|image: $image:|" "target/manifests/$platform.yaml" >"$into/gybe-$platform.yaml"
    done
    # `helm package` writes the time into the archive.
    chart=target/releases/chart
    rm -rf "$chart"
    mkdir -p "$chart"
    cp -R manifests/chart "$chart/gybe"
    sed -i "s|^  repository: gybe$|  repository: $image|" "$chart/gybe/values.yaml"
    sed -i "s|^      image: gybe:|      image: $image:|" "$chart/gybe/Chart.yaml"
    [ -z "$source" ] || printf 'home: %s\nsources: [%s]\n' "$source" "$source" >>"$chart/gybe/Chart.yaml"
    packed "$chart" gybe >"$into/gybe-$version.tgz"
    echo "$notes" >"$into/NOTES.md"
    (cd "$into" && sha256sum -- * >SHA256SUMS)
    ls -l "$into"
}

publish() {
    case $image in */*) ;; *) fail "$image names no registry; for example: registry.example/mesh/gybe" ;; esac
    (cd "$into" && sha256sum --check --quiet SHA256SUMS) || fail "$into is not what make release built; run it again"
    tar -xzOf "$into/gybe-$version.tgz" gybe/values.yaml | grep -xF "  repository: $image" >/dev/null ||
        fail "the chart names another image than $image; run make release with IMAGE=$image"
    integration/setup.sh publish
    helm=$(manifests/tool.sh helm)
    cosign=$(manifests/tool.sh cosign)
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT

    chart=${image%/*}/charts/gybe
    skopeo copy --quiet --all --preserve-digests --digestfile "$scratch/image" \
        "oci-archive:$into/gybe-$version.oci.tar" "docker://$image:$version"
    image_digest=$(cat "$scratch/image")
    "$helm" push "$into/gybe-$version.tgz" "oci://${chart%/gybe}" >"$scratch/chart" 2>&1 || {
        cat "$scratch/chart" >&2
        fail "the chart was not pushed"
    }
    chart_digest=$(sed -n 's/^Digest: //p' "$scratch/chart")

    if [ -n "${COSIGN_KEY:-}" ]; then
        set -- --yes --key "$COSIGN_KEY" --use-signing-config=false --tlog-upload=false
    else
        set -- --yes
    fi
    "$cosign" sign "$@" "$image@$image_digest"
    "$cosign" sign "$@" "$chart@$chart_digest"
    tar -xOf "$into/gybe-$version.oci.tar" "blobs/$(echo "$image_digest" | tr : /)" >"$scratch/index"
    for architecture in amd64 arm64; do
        digest=$(jq -r --arg it "$architecture" '.manifests[] | select(.platform.architecture == $it).digest' "$scratch/index")
        "$cosign" attest "$@" --type cyclonedx --predicate "$into/gybe-linux-$architecture.cdx.json" "$image@$digest"
    done
    "$cosign" sign-blob "$@" --bundle "$into/SHA256SUMS.sigstore.json" "$into/SHA256SUMS" >/dev/null
    printf '%s=%s\n' image "$image" image_digest "$image_digest" chart "$chart" chart_digest "$chart_digest" |
        tee dist/published
}

$mode
