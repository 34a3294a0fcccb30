#!/bin/sh
# Runs the kernel tests as a plain user in a user namespace: makes that user, with a range of ids to
# map, and deletes it again. Needs root, and only for that.
set -eu
cd "$(dirname "$0")/.."

if [ "$(id -u)" != 0 ]; then
    echo "this makes a user and deletes it, so it needs root; as yourself run: make test-kernel" >&2
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
# useradd gives a range only where login.defs says so.
grep -q "^$user:" /etc/subuid || usermod --add-subuids 3000000-3065535 "$user"
grep -q "^$user:" /etc/subgid || usermod --add-subgids 3000000-3065535 "$user"
chmod 0755 "$place"

cargo build --locked
# What stands in deps/ is a test; a program of the package's own is not.
programs="$(cargo test --locked --no-run -p gybe-integration --message-format=json |
    sed -n 's|.*"executable":"\([^"]*/deps/[^"]*\)".*|\1|p' |
    # Thousands of rules are one message to the kernel, and only the machine's own root may send one that is
    # longer than net.core.wmem_max (netlink(7), SO_SNDBUFFORCE in socket(7)).
    grep -v /hostile_annotations-)"

# The user may not be able to reach this directory; in a mount namespace of its own it is put where
# everybody can. cargo runs a test in its package's directory, so this does too.
# shellcheck disable=SC2016 # expanded inside
unshare --mount --propagation private sh -euc '
    here="$1" place="$2" user="$3"
    shift 3
    mount --bind "$here" "$place"
    cd "$place/integration"
    for program in "$@"; do
        runuser -u "$user" -- ./as-root.sh "..${program#"$here"}"
    done
' as-user "$PWD" "$place" "$user" $programs
