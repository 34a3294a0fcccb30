#!/bin/sh
# image.sh VERSION ARCHIVE ARCHITECTURE=DIRECTORY...: writes the image gybe:VERSION as an OCI archive, for each
# architecture from the directory of its programs. Uses buildah, without a daemon and without a registry. The same
# programs give the same bytes. The variables SOURCE and REVISION, the address of the repository and the commit, become
# labels.
set -eu
cd "$(dirname "$0")/.."
version=$1 archive=$2
shift 2

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' INT TERM HUP

# buildah's store, which the caller's other images do not share.
buildah() { command buildah --storage-driver vfs --root "$scratch/store" --runroot "$scratch/run" "$@"; }

labels=""
for label in "version=$version" "licenses=Apache-2.0" "source=${SOURCE:-}" "revision=${REVISION:-}"; do
    [ -z "${label#*=}" ] ||
        labels="$labels --label=org.opencontainers.image.$label --annotation=org.opencontainers.image.$label"
done
for pair in "$@"; do
    architecture=${pair%%=*}
    # shellcheck disable=SC2086 # the list is split into words
    buildah build --quiet --isolation chroot --timestamp 0 --identity-label=false --platform "linux/$architecture" \
        --build-arg "VERSION=$version" $labels --tag "gybe:$architecture" --file manifests/Containerfile "${pair#*=}" >/dev/null
    # Smaller than gzip by a sixth; containerd reads it from 1.5 on. `manifest push` of buildah 1.28 takes no format.
    buildah push --quiet --compression-format zstd --compression-level 20 \
        "gybe:$architecture" "oci:$scratch/layout:$architecture"
done

# One index of all architectures, as `manifest push` writes it.
list=application/vnd.oci.image.index.v1+json
jq --compact-output --join-output --arg list "$list" '{schemaVersion, mediaType: $list, manifests: [.manifests[] | {
    mediaType, digest, size,
    platform: {architecture: .annotations["org.opencontainers.image.ref.name"], os: "linux"}}]}' \
    "$scratch/layout/index.json" >"$scratch/list"
digest=$(sha256sum <"$scratch/list" | cut -d " " -f 1)
# `ctr images import`, also k3s's, and docker name the image after the second annotation. Nodes complete the name in
# the manifests in the same way.
jq --null-input --compact-output --arg list "$list" --arg digest "sha256:$digest" --arg version "$version" \
    --argjson size "$(wc -c <"$scratch/list")" '{schemaVersion: 2, manifests: [{mediaType: $list, $digest, $size,
    annotations: {"org.opencontainers.image.ref.name": "gybe:\($version)",
        "io.containerd.image.name": "docker.io/library/gybe:\($version)"}}]}' >"$scratch/layout/index.json"
mv "$scratch/list" "$scratch/layout/blobs/sha256/$digest"

tar --create --file "$scratch/archive" --directory "$scratch/layout" --format ustar --sort name --mtime @0 \
    --owner 0 --group 0 --numeric-owner --mode u=rwX,go=rX oci-layout index.json blobs
install -D -m 0644 "$scratch/archive" "$archive"
