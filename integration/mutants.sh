#!/usr/bin/env bash
# mutants.sh [FILE...]: cargo-mutants changes one expression at a time in the files that decide (all, or those named) and
# runs the unit tests of the library. The changes that they do not detect are tested again, as root, with the package's
# other tests and the kernel tests. Writes docs/MUTANTS.md from the last result of each file in target/mutants. A change
# takes about 10 s. KERNEL has the arguments of the second test run; "none" omits that run.
set -euo pipefail
cd "$(dirname "$0")/.."

decides=(netfilter/src/{compile,probe/choose,apply/redirection,iptables/program,kernel/routes,nft/dump,nft/lists}.rs
    netfilter/src/{compile,kernel/routes,nft/dump}/
    plugin/src/{decide,gates,annotations,target,probe_cache,facts}.rs plugin/src/{annotations,facts}/ plugin/src/pod/trim.rs)
files=("$@")
[ $# -gt 0 ] || mapfile -t files < <(git ls-files --error-unmatch "${decides[@]}" | grep -v tests)
kernel=${KERNEL:---tests}
results=target/mutants justified=integration/mutants-justified.txt
command -v jq >/dev/null || { echo "needs jq: apt-get install jq" >&2; exit 1; }

# A mutant that lacks a check may write rules into its own namespace, which therefore is not the machine's.
if [ "${GYBE_MUTANTS:-}" != apart ]; then
    command -v cargo-mutants >/dev/null || cargo install --quiet --locked --debug cargo-mutants
    cargo fetch --quiet --locked
    user=(); [ "$(id -u)" = 0 ] || user=(--user --map-root-user)
    exec env GYBE_MUTANTS=apart CARGO_NET_OFFLINE=true unshare "${user[@]}" --net \
        sh -c 'ip link set lo up && exec "$0" "$@"' integration/mutants.sh "$@"
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Prints the undetected changes of a result: file, line, column, function and change; and the diff.
survivors() {
    jq -r '.outcomes[] | select(.summary == "MissedMutant") | [.scenario.Mutant.name, .diff_path] | @tsv' \
        "$1/mutants.out/outcomes.json"
}

slow_tests() {
    # shellcheck disable=SC2086 # the list is split into words
    (cd "$scratch" && cargo build --quiet --locked && timeout 1800 integration/as-root.sh \
        cargo test --quiet --locked -p "$1" -p gybe-integration $kernel) >"$2" 2>&1 </dev/null
}

# Runs the slow tests on each undetected change, in a copy of the tree that keeps the build directory. They must pass
# without a change first: otherwise a failure would not show that they detect one.
kernel_tests() {
    local file=$1 out=$2 package=gybe-${1%%/*} change diff verdict
    [ -n "$(survivors "$out")" ] || return 0
    git ls-files -z | tar --null --create --files-from - | tar --extract --directory "$scratch"
    slow_tests "$package" "$out/kernel.log" || { echo "fail without a change: $out/kernel.log" >&2; exit 1; }
    survivors "$out" | while IFS=$'\t' read -r change diff; do
        patch --silent "$scratch/$file" "$out/mutants.out/$diff"
        if slow_tests "$package" "$out/kernel.log"; then verdict=missed; else verdict=caught; fi
        patch --silent --reverse "$scratch/$file" "$out/mutants.out/$diff"
        printf '%s\t%s\n' "$verdict" "$change" >>"$out/kernel"
    done
}

table() {
    local out file change reason
    echo "# Mutation testing of decision code"
    echo
    echo "Written by \`make -C integration mutants\` (outside CI): cargo-mutants changes one expression at a time. Mutants that the unit tests do"
    echo "not detect are run against the package's other tests and the kernel tests. A file that is not listed has not been"
    echo "tested yet."
    echo
    echo "| File | Mutants | Do not compile | Detected by unit tests | Detected by the others | Not detected |"
    echo "|---|---|---|---|---|---|"
    for out in "$results"/*/; do
        file=$(jq -r '[.outcomes[].scenario | objects | .Mutant.file][0] // empty' "$out/mutants.out/outcomes.json")
        [ -n "$file" ] || continue
        jq -r --arg file "$file" --arg caught "$(grep -c ^caught "$out/kernel" 2>/dev/null || true)" '
            "| `\($file)` | \(.total_mutants) | \(.unviable) | \(.caught + .timeout) | \($caught) | \(.missed - ($caught | tonumber? // 0)) |"' \
            "$out/mutants.out/outcomes.json"
    done
    echo
    echo "| Not detected | Reason |"
    echo "|---|---|"
    for out in "$results"/*/; do
        survivors "$out" | cut -f1 | while read -r change; do
            grep -qxF "caught	$change" "$out/kernel" 2>/dev/null && continue
            # Justifications have no line numbers.
            change=$(sed -E 's/^([^:]*):[0-9]+:[0-9]+: /\1: /' <<<"$change")
            reason=$(grep -F "$change	" "$justified" 2>/dev/null | head -1 | cut -f2 || true)
            printf '| `%s` | %s |\n' "$(sed 's/|/\\|/g' <<<"$change")" "${reason:-to be looked at}"
        done
    done
}

for file in "${files[@]}"; do
    out=$results/${file//\//__} status=0
    rm -rf "$out" && mkdir -p "$out"
    cargo mutants --file "$file" --output "$out" --cargo-arg=--locked --colors never -- --lib || status=$?
    # 2: some changes were not detected; 3: some tests did not end. Both are results.
    case $status in 0 | 2 | 3) ;; *) exit "$status" ;; esac
    [ "$kernel" = none ] || kernel_tests "$file" "$out"
done
table >docs/.MUTANTS.md
mv docs/.MUTANTS.md docs/MUTANTS.md
