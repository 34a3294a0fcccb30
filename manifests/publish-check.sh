#!/usr/bin/env bash
# publish-check.sh DIRECTORY VERSION: publishes what `make release IMAGE=localhost:5000/mesh/gybe` built in that clone, to
# a registry (distribution) that runs meanwhile, signed with keys that are thrown away. Then, as a user does: verifies
# the signatures, pulls the image, pulls and renders the chart, and unpacks `kubectl gybe`. Runs in a network namespace of
# its own.
set -euo pipefail
cd "$(dirname "$0")/.."
clone=$(realpath "$1") version=$2 image=localhost:5000/mesh/gybe

if [ -z "${GYBE_IN_NAMESPACE:-}" ]; then
    # Inside there is no network to fetch them from.
    integration/setup.sh publish
    for program in registry cosign helm; do
        manifests/tool.sh "$program" >/dev/null
    done
    GYBE_IN_NAMESPACE=1 exec unshare --net --pid --fork --kill-child --mount-proc "$0" "$@"
fi

registry=$(manifests/tool.sh registry) cosign=$(manifests/tool.sh cosign) helm=$(manifests/tool.sh helm)
ip link set lo up
data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT
export HOME=$data HELM_CACHE_HOME=$data/helm HELM_CONFIG_HOME=$data/helm HELM_DATA_HOME=$data/helm
fail() { echo "publish-check: $1" >&2; exit 1; }
# refused TEXT COMMAND...: the command fails with this text.
refused() {
    if "${@:2}" >"$data/log" 2>&1; then fail "passed: ${*:2}"; fi
    grep -qiE "$1" "$data/log" || { cat "$data/log" >&2; fail "failed for another reason: ${*:2}"; }
}

cat >"$data/registry.yml" <<YAML
version: 0.1
log: { accesslog: { disabled: true }, level: error }
storage: { filesystem: { rootdirectory: $data/registry } }
http: { addr: "localhost:5000", secret: thrown-away }
YAML
OTEL_TRACES_EXPORTER=none "$registry" serve "$data/registry.yml" >"$data/registry.log" 2>&1 &
served=""
for _ in {1..100}; do
    if (exec 3<>/dev/tcp/localhost/5000) 2>/dev/null; then served=yes && break; fi
    sleep 0.1
done
[ -n "$served" ] || { cat "$data/registry.log" >&2; fail "the registry does not listen"; }

export COSIGN_PASSWORD=thrown-away
for name in used other; do
    (cd "$data" && "$cosign" generate-key-pair --output-key-prefix "$name" 2>/dev/null)
done
COSIGN_KEY=$data/used.key "$clone/manifests/release.sh" --publish "$version" "$image"
published() { sed -n "s/^$1=//p" "$clone/dist/published"; }
published_chart=$(published chart) published_image_digest=$(published image_digest)

# What docs/INSTALL.md names, with a key instead of the workflow's identity, and without the public log.
released=$clone/dist/release
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

skopeo copy --quiet --all --src-tls-verify=false "docker://$image@$published_image_digest" "oci:$data/pulled:gybe"
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

"$helm" pull "oci://$published_chart" --version "$version" --plain-http --destination "$data" >"$data/log" 2>&1 ||
    { cat "$data/log" >&2; fail "the chart was not pulled"; }
cmp "$data/gybe-$version.tgz" "$released/gybe-$version.tgz"
"$helm" template gybe "oci://$published_chart" --version "$version" --plain-http --namespace gybe-system --kube-version 1.30.0 \
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
