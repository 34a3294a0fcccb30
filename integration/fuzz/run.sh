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

found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT

# A log is often all that is left of a machine that tested, so the input is in it.
show_inputs() {
    local input
    find artifacts/"$1" -type f -newer "$found/$1.begun" 2>/dev/null | while read -r input; do
        if [ "$(stat -c %s "$input")" -le 8192 ]; then
            printf 'to have this input again: base64 -d >integration/fuzz/%s <<END\n%s\nEND\n' "$input" "$(base64 "$input")"
        fi
    done
}

throw_at() {
    local target=$1 log=$found/$1.log
    mkdir "$found/$target"
    touch "$found/$target.begun"
    # New inputs go to the first directory; the committed ones are only read. What one seed throws is
    # always the same, so nobody looks at what other processes may have put there meanwhile.
    if ! cargo fuzz run "${build[@]}" "$target" "$found/$target" "corpus/$target" -- \
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
