#!/usr/bin/env bash
# run.sh SECONDS SEED: fuzzes each target for that many seconds, starting from the seeds that gybe-fuzz-seeds
# writes from seeds.json and from recorded data. As many targets run at a time as there are
# processors; a target has one thread. Inputs that fail are in artifacts/; cargo-fuzz prints the command that
# runs one again, and small ones are printed as well.
set -euo pipefail
cd "$(dirname "$0")"

seconds=${1:-60} seed=${2:-1}
command -v cargo-fuzz >/dev/null || cargo install --quiet --locked --debug cargo-fuzz

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd ../.. && cargo run --quiet --locked -p gybe-integration --bin gybe-fuzz-seeds -- "$work/seeds")

# The fuzzed code has no unsafe code that touches memory, so there is no sanitizer: AddressSanitizer would
# need a nightly compiler and halve the number of inputs.
build=(--fuzz-dir . --sanitizer none)
cargo fuzz build "${build[@]}"

# The inputs that follow from a seed depend on addresses too, so these are fixed where setarch is allowed.
# The keys of std's hash maps and the size of the environment stay random.
fixed_addresses=(setarch --addr-no-randomize)
"${fixed_addresses[@]}" true 2>/dev/null || fixed_addresses=()

# A log is often all that is left of a CI machine, so small inputs are printed into it.
print_inputs() {
    local input
    find "artifacts/$1" -type f -newer "$work/$1.started" -size -9k | while read -r input; do
        printf '\n%s, to run it again:\nbase64 -d >input <<END\n%s\nEND\n' "${input##*/}" "$(base64 "$input")"
        printf 'cargo fuzz run --fuzz-dir integration/fuzz --sanitizer none %s input\n' "$1"
    done
}

fuzz() {
    local target=$1 log=$work/$1.log corpus=("$work/$1")
    mkdir "$work/$target"
    touch "$work/$target.started"
    # libFuzzer writes new inputs to the first directory and only reads the others.
    [ ! -d "$work/seeds/$target" ] || corpus+=("$work/seeds/$target")
    # No other process adds inputs, and looking for them would make runs of one seed differ: -reload=0.
    # A target may write files, which end with the directory.
    if ! TMPDIR=$work "${fixed_addresses[@]}" cargo fuzz run "${build[@]}" "$target" "${corpus[@]}" -- \
        -seed="$seed" -reload=0 -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=1024 \
        -print_final_stats=1 >"$log" 2>&1; then
        printf '\n--- %s failed, seed %s\n' "$target" "$seed"
        cat "$log"
        print_inputs "$target"
        return 1
    fi
    printf '\n--- %s, %s s, seed %s\n' "$target" "$seconds" "$seed"
    grep -E '^stat::(number_of_executed_units|peak_rss_mb)' "$log"
}

for target in targets/*.rs; do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || true; done
    fuzz "$(basename "$target" .rs)" || touch "$work/failed" &
done
wait
[ ! -e "$work/failed" ]
