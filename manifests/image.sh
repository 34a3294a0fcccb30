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
    # shellcheck disable=SC2086 # the list is split into words
    buildah build --quiet --isolation chroot --timestamp 0 --identity-label=false --platform "linux/${pair%%=*}" \
        --build-arg "VERSION=$version" $labels --manifest "gybe:$version" --file manifests/Containerfile "${pair#*=}" >/dev/null
done
buildah manifest push --quiet --all "gybe:$version" "oci:$scratch/layout:gybe:$version"

# `ctr images import`, also k3s's, and docker name the image after this annotation. Nodes complete the name in the
# manifests in the same way.
jq --compact-output --arg name "docker.io/library/gybe:$version" \
    '.manifests[].annotations["io.containerd.image.name"] = $name' "$scratch/layout/index.json" >"$scratch/index.json"
mv "$scratch/index.json" "$scratch/layout/"

tar --create --file "$scratch/archive" --directory "$scratch/layout" --format ustar --sort name --mtime @0 \
    --owner 0 --group 0 --numeric-owner --mode u=rwX,go=rX oci-layout index.json blobs
install -D -m 0644 "$scratch/archive" "$archive"
