#!/bin/sh
# checkov.sh: compares what checkov finds in the manifests that manifests/build.sh has rendered with manifests/checkov.txt.
# Installs checkov from PyPI below target/tools, with Python's venv.
set -eu
cd "$(dirname "$0")/.."

integration/setup.sh json
python3 -c 'import ensurepip, venv' 2>/dev/null || integration/setup.sh venv
# shellcheck source=integration/setup-lock.sh
. integration/setup-lock.sh

version=3.3.30
checkov=target/tools/checkov-$version
if [ ! -x "$checkov/bin/checkov" ]; then
    rm -rf "$checkov"
    python3 -m venv "$checkov"
    "$checkov/bin/pip" install --quiet --disable-pip-version-check "checkov==$version"
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
LOG_LEVEL=ERROR "$checkov/bin/checkov" --directory target/manifests --framework kubernetes --compact --quiet --soft-fail \
    --skip-download --output json >"$scratch/report"
jq -r '.results.failed_checks[] | "\(.check_id) \(.resource | split(".")[0])"' "$scratch/report" | sort -u >"$scratch/found"
jq -e '.summary | .parsing_errors == 0 and .resource_count > 100' "$scratch/report" >/dev/null ||
    { jq .summary "$scratch/report" >&2 && exit 1; }
sed -n 's/^\(CKV[^ ]* [^ ]*\) .*/\1/p' manifests/checkov.txt | sort >"$scratch/accepted"
diff "$scratch/accepted" "$scratch/found" >&2 ||
    { echo "manifests/checkov.txt (<) and checkov's findings (>) differ" >&2 && exit 1; }
jq -r '.summary | "\(.resource_count) objects: \(.passed) checks passed"' "$scratch/report"
echo "$(wc -l <"$scratch/accepted") findings, each with a reason in manifests/checkov.txt"
