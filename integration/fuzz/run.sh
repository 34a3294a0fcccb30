#!/usr/bin/env bash
# Throws inputs at each target for that many seconds, from the committed corpus on. What is found is
# in artifacts/, and the line that throws it again is printed by cargo-fuzz.
set -euo pipefail
cd "$(dirname "$0")"

seconds=${1:-60}
command -v cargo-fuzz >/dev/null || cargo install --quiet --locked cargo-fuzz

# What is fuzzed has no unsafe code that touches memory, so no sanitizer is asked: AddressSanitizer would
# want a nightly compiler, and halve the number of inputs.
build=(--fuzz-dir . --sanitizer none)
cargo fmt --check
cargo fuzz build "${build[@]}"

found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT
for corpus in corpus/*/; do
    target=$(basename "$corpus")
    printf '\n--- %s, %s s\n' "$target" "$seconds"
    mkdir "$found/$target"
    # New inputs go to the first directory; the committed ones are only read.
    if ! cargo fuzz run "${build[@]}" "$target" "$found/$target" "$corpus" -- \
        -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=1024 \
        -print_final_stats=1 >"$found/$target.log" 2>&1; then
        cat "$found/$target.log"
        exit 1
    fi
    grep -E '^stat::(number_of_executed_units|peak_rss_mb)' "$found/$target.log"
done
