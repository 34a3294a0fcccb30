#!/usr/bin/env bash
# publish-check.sh VERSION IMAGE: publishes what `make release IMAGE=…` built in this clone, signed with keys that are
# thrown away, to the registry of IMAGE, whose CA is in the file of the variable SSL_CERT_FILE. Then, as a user does:
# verifies the signatures, pulls the image, pulls and renders the chart, and unpacks `kubectl gybe`. `make -C
# integration published` runs it in a cluster.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1 image=$2

cosign=$(manifests/tool.sh cosign) helm=$(manifests/tool.sh helm)
data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT
export HOME=$data HELM_CACHE_HOME=$data/helm HELM_CONFIG_HOME=$data/helm HELM_DATA_HOME=$data/helm
fail() { echo "publish-check: $1" >&2; exit 1; }
# refused TEXT COMMAND...: the command fails with this text.
refused() {
    if "${@:2}" >"$data/log" 2>&1; then fail "passed: ${*:2}"; fi
    grep -qiE "$1" "$data/log" || { cat "$data/log" >&2; fail "failed for another reason: ${*:2}"; }
}

export COSIGN_PASSWORD=thrown-away
for name in used other; do
    (cd "$data" && "$cosign" generate-key-pair --output-key-prefix "$name" 2>/dev/null)
done
COSIGN_KEY=$data/used.key manifests/release.sh --publish "$version" "$image"
published() { sed -n "s/^$1=//p" dist/published; }
published_chart=$(published chart) published_image_digest=$(published image_digest)

# What docs/INSTALL.md names, with a key instead of the workflow's identity, and without the public log.
released=dist/release
verify() { "$cosign" "$1" --key "$data/$2.pub" --insecure-ignore-tlog=true "${@:3}" >"$data/verified" 2>"$data/log"; }
verify verify used "$image:$version" || { cat "$data/log" >&2; fail "the image's signature"; }
verify verify used "$published_chart:$version" || { cat "$data/log" >&2; fail "the chart's signature"; }
verify verify-blob used --bundle "$released/SHA256SUMS.sigstore.json" "$released/SHA256SUMS" ||
    { cat "$data/log" >&2; fail "the signature of the checksums"; }
refused 'no matching (signatures|attestations)' \
    "$cosign" verify --key "$data/other.pub" --insecure-ignore-tlog=true "$image:$version"
sed 's/^./0/' "$released/SHA256SUMS" >"$data/changed"
refused 'invalid signature|failed to verify|does not match' "$cosign" verify-blob --key "$data/used.pub" \
    --insecure-ignore-tlog=true --bundle "$released/SHA256SUMS.sigstore.json" "$data/changed"
echo "verified: image, chart, checksums"

skopeo copy --quiet --all "docker://$image@$published_image_digest" "oci:$data/pulled:gybe"
for architecture in amd64 arm64; do
    digest=$(skopeo inspect --raw "oci:$data/pulled:gybe" |
        jq -r --arg it "$architecture" '.manifests[] | select(.platform.architecture == $it).digest')
    verify verify-attestation used --type cyclonedx "$image@$digest" ||
        { cat "$data/log" >&2; fail "the list of crates of $architecture"; }
    jq -r .payload "$data/verified" | base64 -d | jq -S .predicate >"$data/attested"
    jq -S . "$released/gybe-linux-$architecture.cdx.json" | cmp - "$data/attested"
    skopeo inspect --config --raw --override-os linux --override-arch "$architecture" "oci:$data/pulled:gybe" \
        >"$data/config"
    [ "$(jq -r '.config.Labels["org.opencontainers.image.version"]' "$data/config")" = "$version" ] ||
        fail "the label of the version, $architecture"
done
echo "pulled: $image@$published_image_digest, both architectures, with their lists of crates"

"$helm" pull "oci://$published_chart" --version "$version" --destination "$data" >"$data/log" 2>&1 ||
    { cat "$data/log" >&2; fail "the chart was not pulled"; }
cmp "$data/gybe-$version.tgz" "$released/gybe-$version.tgz"
"$helm" template gybe "oci://$published_chart" --version "$version" --namespace gybe-system --kube-version 1.30.0 \
    >"$data/installed" 2>"$data/log" || { cat "$data/log" >&2; fail "helm template"; }
images=$(sed -n 's/^ *image: *//p' "$data/installed" | sort -u)
[ "$images" = "$image:$version" ] || fail "the chart names other images: $images"
echo "rendered by helm from oci://$published_chart"

# As krew does: the archive that the manifest names has this checksum, and contains the program.
for architecture in amd64 arm64; do
    archive=kubectl-gybe-linux-$architecture.tar.gz
    read -r sum _ < <(sha256sum "$released/$archive")
    grep -A 1 -F "/releases/download/v$version/$archive" "$released/gybe.krew.yaml" | grep -qF "sha256: \"$sum\"" ||
        fail "gybe.krew.yaml names another archive than $archive"
done
mkdir "$data/plugin"
tar -xzf "$released/kubectl-gybe-linux-$(dpkg --print-architecture).tar.gz" -C "$data/plugin"
ln -s gybe "$data/plugin/kubectl-gybe"
[ "$("$data/plugin/kubectl-gybe" version)" = "gybe $version" ] || fail "kubectl gybe version"
echo "unpacked as krew does: kubectl gybe"
