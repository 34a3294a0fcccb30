#!/bin/sh
# notices.sh TARGET DIRECTORY: writes what the programs for TARGET are made of: gybe.cdx.json, a CycloneDX document;
# NOTICES, the licences of all crates, of Rust's standard library and of musl; and LICENSE, Gybe's own.
set -eu
cd "$(dirname "$0")/.."
target=$1 into=$2

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' INT TERM HUP

sysroot=$(rustc --print sysroot)
rust=$(rustc --version | cut -d' ' -f2)
case $target in
*-musl) musl=$(strings "$sysroot/lib/rustlib/$target/lib/self-contained/libc.a" | grep -xE '1\.[0-9]+\.[0-9]+') ;;
*)
    echo "programs for $target contain this machine's C library, which an image must not: install Rust's target" \
        "${target%%-*}-unknown-linux-musl" >&2
    exit 1
    ;;
esac

# The crates that these two packages use with these features: `cargo metadata` unites the features of the workspace.
cargo tree --locked -p gybe-plugin -p gybe-installer --target "$target" --edges normal,no-proc-macro --prefix none \
    --format '{p}' >"$scratch/tree"
sed -E 's/ v([^ ]+).*/@\1/' "$scratch/tree" | sort -u >"$scratch/crates"
cargo metadata --locked --format-version 1 --filter-platform "$target" >"$scratch/metadata"
jq --rawfile crates "$scratch/crates" --arg rust "$rust" --arg musl "$musl" -f manifests/sbom.jq "$scratch/metadata" \
    >"$scratch/gybe.cdx.json"

# Prints the paths of a crate's licences.
licences_in() {
    find "$1" -type f -iregex '.*/\(licen[cs]e\|copying\|copyright\|notice\|unlicense\)[^/]*' ! -name '*.rs' |
        LC_ALL=C sort
}

# Each text once: texts/HASH, and in names/HASH the crates that have it, in the order of the file `order`.
mkdir "$scratch/texts" "$scratch/names"
jq -r --rawfile crates "$scratch/crates" '($crates | split("\n")) as $names
    | .packages | sort_by(.name, .version)[]
    | select(.source != null and ("\(.name)@\(.version)" | IN($names[])))
    | [.name, .version, .license, (.manifest_path | rtrimstr("/Cargo.toml"))] | @tsv' "$scratch/metadata" |
    while IFS=$(printf '\t') read -r name version licence directory; do
        echo "$name $version: $licence" >>"$scratch/list"
        licences_in "$directory" >"$scratch/found"
        if [ ! -s "$scratch/found" ]; then
            # The licence asks for its text, which LICENSE is.
            [ "$licence" = Apache-2.0 ] || { echo "$name $version contains no text of its licence" >&2; exit 1; }
            echo LICENSE >"$scratch/found"
        fi
        while read -r file; do
            tr -d '\r' <"$file" >"$scratch/text"
            hash=$(sha256sum "$scratch/text" | cut -d' ' -f1)
            if [ ! -e "$scratch/texts/$hash" ]; then
                mv "$scratch/text" "$scratch/texts/$hash"
                echo "$hash" >>"$scratch/order"
            fi
            echo "$name $version" >>"$scratch/names/$hash"
        done <"$scratch/found"
    done

# The text of the page. A file: the exit code of a command in a pipe is lost.
sed -e 's/<[^>]*>//g; s/^[[:space:]]*//; s/&lt;/</g; s/&gt;/>/g; s/&quot;/"/g; s/&#34;/"/g' \
    -e "s/&#39;/'/g; s/&#x27;/'/g; s/&amp;/\&/g" "$sysroot/share/doc/rust/COPYRIGHT-library.html" >"$scratch/std"

heading() { printf '\n%s\n' "======== $*"; }
{
    echo "Gybe is licensed under the Apache License 2.0. Its programs contain these crates, the standard library of"
    echo "Rust $rust, and musl $musl. The texts of their licences follow."
    echo
    cat "$scratch/list"
    while read -r hash; do
        heading "$(paste -sd, "$scratch/names/$hash" | sed 's/,/, /g')"
        cat "$scratch/texts/$hash"
    done <"$scratch/order"
    heading "musl $musl"
    cat manifests/musl.LICENSE
    heading "Rust $rust, standard library"
    cat -s "$scratch/std"
} >"$scratch/NOTICES"

mkdir -p "$into"
install -m 0644 LICENSE "$scratch/NOTICES" "$scratch/gybe.cdx.json" "$into/"
