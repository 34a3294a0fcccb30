#!/bin/sh
# Runs the kernel tests as an unprivileged user in a user namespace. It creates that user with a range of ids to
# map, and deletes it again; for that it needs root. The arguments are given to every test program. TESTS: options for
# `cargo test` that select test programs, such as `--test add`; without them all run.
set -eu
cd "$(dirname "$0")/.."

if [ "$(id -u)" != 0 ]; then
    echo "this creates and deletes a user, so it needs root; as yourself, run: make -C integration kernel" >&2
    exit 1
fi

user="gybe-test-$$"
place="$(mktemp -d)"
cleanup() {
    userdel "$user" 2>/dev/null || true
    rmdir "$place"
}
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
useradd --no-create-home --no-user-group --shell /bin/sh "$user"
# useradd assigns a range only if login.defs says so.
grep -q "^$user:" /etc/subuid || usermod --add-subuids 3000000-3065535 "$user"
grep -q "^$user:" /etc/subgid || usermod --add-subgids 3000000-3065535 "$user"
chmod 0755 "$place"

cargo build --locked
# Test programs are in deps/; the package's own programs are not.
# shellcheck disable=SC2086 # several options
programs="$(cargo test --locked --no-run -p gybe-integration ${TESTS:-} --message-format=json |
    sed -n 's|.*"executable":"\([^"]*/deps/[^"]*\)".*|\1|p')"

# The user may have no access to this directory: a mount namespace shows it elsewhere. Cargo runs a test in its
# package's directory, so this does too.
# shellcheck disable=SC2016 # expanded inside
unshare --mount --propagation private sh -euc '
    here="$1" place="$2" user="$3" programs="$4"
    shift 4
    mount --bind "$here" "$place"
    cd "$place/integration"
    for program in $programs; do
        runuser -u "$user" -- ./as-root.sh "..${program#"$here"}" "$@"
    done
' as-user "$PWD" "$place" "$user" "$programs" "$@"
