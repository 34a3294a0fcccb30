#!/bin/sh
# Runs a command as root: directly if the caller is root, else in a user namespace with a range of ids mapped, because
# the tests create sockets as several users.
set -eu

if [ "$(id -u)" = 0 ]; then
    exec "$@"
fi
if ! unshare --user --map-root-user --map-auto true 2>/dev/null; then
    echo "cannot create a user namespace with mapped ids for $(id -un); either run this as root, or:" >&2
    echo "  sudo apt-get install uidmap && sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $(id -un)" >&2
    echo "  sudo sysctl -w kernel.unprivileged_userns_clone=1   (where that setting exists)" >&2
    exit 1
fi
# In a new network namespace the loopback link is down, and the tests' API server listens there.
# shellcheck disable=SC2016 # expanded by the inner shell
exec unshare --user --map-root-user --map-auto --net \
    sh -euc 'PATH="$PATH:/usr/sbin:/sbin" ip link set lo up; exec "$@"' as-root "$@"
