#!/bin/sh
# release.sh VERSION [IMAGE]: builds everything of a release in dist/release: the programs for both architectures, their
# image, what they are made of, the chart, the manifests of each platform, notes and checksums. IMAGE is the name under
# which the chart and the manifests find the image, without a tag.
set -eu
cd "$(dirname "$0")/.."
version=${1:-} image=${2:-gybe}

fail() {
    echo "release${version:+ $version}: $1" >&2
    exit 1
}

[ -n "$version" ] || fail "no version; run: make release VERSION=x.y.z"
cargo=$(cargo pkgid --locked -p gybe-installer | sed 's/.*[#@]//')
[ "$cargo" = "$version" ] || fail "Cargo.toml has version $cargo; set [workspace.package] version and run cargo check"
other=$(sed -n 's/^ *image: *//p' manifests/base/daemonset.yaml | grep -vxF "gybe:$version" || true)
[ -z "$other" ] || fail "manifests/base/daemonset.yaml names another image: $(echo $other); set gybe:$version"
notes=$(awk -v version="$version" '/^## / { found = $2 == version; next } found' CHANGELOG.md)
[ -n "$notes" ] || fail "CHANGELOG.md has no section $version; rename \"Unreleased\" to \"$version - YYYY-MM-DD\""

integration/setup.sh image arm64
into=dist/release
rm -rf "$into"
mkdir -p "$into"

images=""
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
done
cp LICENSE "$into/"
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
tar --create --directory "$chart" --format ustar --sort name --mtime @0 --owner 0 --group 0 --numeric-owner \
    --mode u=rwX,go=rX gybe | gzip -9n >"$into/gybe-$version.tgz"
echo "$notes" >"$into/NOTES.md"
(cd "$into" && sha256sum -- * >SHA256SUMS)
ls -l "$into"
