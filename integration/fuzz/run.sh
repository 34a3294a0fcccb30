#!/usr/bin/env bash
# run.sh SECONDS SEED: throws inputs at each target for that many seconds, from the committed corpus on,
# as many targets at a time as there are processors; a target has one thread. What is found is in
# artifacts/, the line that throws it again is printed by cargo-fuzz, and a small input is printed too.
set -euo pipefail
cd "$(dirname "$0")"

seconds=${1:-60} seed=${2:-1}
command -v cargo-fuzz >/dev/null || cargo install --quiet --locked cargo-fuzz

# What is fuzzed has no unsafe code that touches memory, so no sanitizer is asked: AddressSanitizer would
# want a nightly compiler, and halve the number of inputs.
build=(--fuzz-dir . --sanitizer none)
cargo fmt --check
cargo fuzz build "${build[@]}"

# What a seed throws depends on addresses too: so they are not drawn at random, where that may be asked
# for. What is left to chance is the keys of std's hash maps, and what a machine's environment weighs.
still=(setarch --addr-no-randomize)
"${still[@]}" true 2>/dev/null || still=()

found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT

# A log is often all that is left of a machine that tested, so a small input is in it.
show_inputs() {
    local input
    find "artifacts/$1" -type f -newer "$found/$1.begun" -size -9k | while read -r input; do
        printf '\n%s again:\nbase64 -d >input <<END\n%s\nEND\n' "${input##*/}" "$(base64 "$input")"
        printf 'cargo fuzz run --fuzz-dir integration/fuzz --sanitizer none %s input\n' "$1"
    done
}

throw_at() {
    local target=$1 log=$found/$1.log
    mkdir "$found/$target"
    touch "$found/$target.begun"
    # New inputs go to the first directory; the committed ones are only read. Nobody else writes there:
    # to look again now and then would only make one run unlike the next.
    if ! "${still[@]}" cargo fuzz run "${build[@]}" "$target" "$found/$target" "corpus/$target" -- \
        -seed="$seed" -reload=0 -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=1024 \
        -print_final_stats=1 >"$log" 2>&1; then
        printf '\n--- %s failed, seed %s\n' "$target" "$seed"
        cat "$log"
        show_inputs "$target"
        return 1
    fi
    printf '\n--- %s, %s s, seed %s\n' "$target" "$seconds" "$seed"
    grep -E '^stat::(number_of_executed_units|peak_rss_mb)' "$log"
}

for corpus in corpus/*/; do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || true; done
    throw_at "$(basename "$corpus")" || touch "$found/failed" &
done
wait
[ ! -e "$found/failed" ]
