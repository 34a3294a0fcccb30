#!/bin/sh
# workflows.sh: checks .github with actionlint, which passes the scripts in it to shellcheck, and with zizmor, from PyPI
# below target/tools with Python's venv. Neither uses the network.
set -eu
cd "$(dirname "$0")/.."

integration/setup.sh workflows
# shellcheck source=integration/setup-lock.sh
. integration/setup-lock.sh

version=1.32.0
zizmor=target/tools/zizmor-$version
if [ ! -x "$zizmor/bin/zizmor" ]; then
    rm -rf "$zizmor"
    python3 -m venv "$zizmor"
    "$zizmor/bin/pip" install --quiet --disable-pip-version-check "zizmor==$version"
fi
actionlint=$(manifests/tool.sh actionlint)

"$actionlint"
# A digest is what the comment beside it names only where GitHub can be asked: zizmor does so without --offline.
"$zizmor/bin/zizmor" --offline --quiet --strict-collection .github
# An image by its tag would pass both.
if grep -nE '(uses|image): ' .github/workflows/*.yml | grep -vE '@(sha256:[0-9a-f]{64}|[0-9a-f]{40} # v[0-9.]+)$'; then
    echo "pin these by digest, an action with its version behind it" >&2
    exit 1
fi
echo "checked: $(echo .github/workflows/*.yml)"
