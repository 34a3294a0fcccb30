#!/usr/bin/env bash
# package-check.sh DEB RPM: installs each package in a clean Debian 12, runs the agent as the unit does, and removes the
# package: the agent's entry comes and goes, no file stays but the plugin in its grace period. Also checks the unit with
# systemd's own tools. In a root directory and mount, PID and network namespaces that end with this script; needs root.
set -euo pipefail
[ "${1:-}" = --chroot ] || cd "$(dirname "$0")/.."

unit=/usr/lib/systemd/system/gybe-node.service
fail() { echo "package-check: $1" >&2; exit 1; }

# Starts the agent with the unit's variables, command and rights, until `$agent` is killed.
start_agent() {
    local exec
    eval "export $(sed -n 's/^Environment=//p' "$unit" | tr '\n' ' ')"
    exec=$(sed -n 's/^ExecStart=//p' "$unit")
    # shellcheck disable=SC2086 # as systemd splits it
    eval "exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs $exec" >/agent.log 2>&1 &
    agent=$!
}

# checked INSTALL REMOVE
checked() {
    $1 >/install.log 2>&1 || { cat /install.log; fail "$1"; }
    [ "$(gybe version)" = "$(/usr/lib/gybe/gybe version)" ]
    [ "$(cat "$conf")" = "$before" ] || fail "the installation changed the node"
    systemd-analyze verify --man=no "$unit"
    # 0 is the best of ten; 3.0 and less is "OK".
    systemd-analyze security --offline=true --threshold=30 --no-pager "$unit" | tail -n 1
    start_agent
    for _ in {1..100}; do
        ! grep -q gybe-cni "$conf" || break
        sleep 0.1
    done
    grep -q gybe-cni "$conf" || { cat /agent.log; fail "the agent wrote no entry"; }
    [ -x /opt/cni/bin/gybe-cni ] || fail "the agent installed no plugin"
    kill "$agent"
    wait "$agent" || fail "the agent ended with $?"
    $2 >/remove.log 2>&1 || { cat /remove.log; fail "$2"; }
    [ "$(cat "$conf")" = "$before" ] || { cat "$conf"; fail "the removal left something in the conf file"; }
    [ ! -e /usr/lib/gybe ] && [ ! -e "$unit" ] && [ ! -e /usr/bin/gybe ] || fail "the removal left files"
    [ -x /opt/cni/bin/gybe-cni ] || fail "the plugin is gone before its grace period"
    echo "$1: the agent ran, $2: removed"
}

if [ "${1:-}" = --inside ]; then
    mount --make-rprivate /
    mount -t proc proc "$2/proc"
    mount -t tmpfs tmpfs "$2/run"
    exec chroot "$2" /package-check.sh --chroot
fi
if [ "${1:-}" = --chroot ]; then
    conf=/etc/cni/net.d/10-primary.conflist
    mkdir -p /etc/cni/net.d /opt/cni/bin
    cp /bin/true /opt/cni/bin/primary
    echo '{ "cniVersion": "1.0.0", "name": "pods", "plugins": [{ "type": "primary" }] }' >"$conf"
    before=$(cat "$conf")
    checked "dpkg --install /gybe.deb" "dpkg --remove gybe"
    dpkg --purge gybe >/dev/null
    [ ! -e /etc/default/gybe ] || fail "the purge left /etc/default/gybe"
    checked "rpm --install --nodeps /gybe.rpm" "rpm --erase gybe"
    exit
fi

[ "$(id -u)" = 0 ] || fail "this makes namespaces and a root directory, so it needs root"
deb=$(realpath "$1") rpm=$(realpath "$2")
integration/setup.sh packages
place=$PWD/target/package-check
mkdir -p "$place"
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1)
[ -n "$mirror" ] || fail "no mirror of Debian is known: run apt-get update"
trap 'rm -rf "$place"' EXIT
apt-config dump | grep '^Acquire::' | grep -v '^Acquire::IndexTargets' >"$place/apt.conf" || true
mmdebstrap --quiet --variant=minbase --format=directory --aptopt="$place/apt.conf" --dpkgopt=force-unsafe-io \
    --include=rpm,systemd bookworm "$place/root" "$mirror"
cp "$deb" "$place/root/gybe.deb"
cp "$rpm" "$place/root/gybe.rpm"
cp manifests/package-check.sh "$place/root/package-check.sh"
unshare --mount --pid --net --fork --kill-child "$PWD/manifests/package-check.sh" --inside "$place/root"
