#!/usr/bin/env bash
# bare-machine.sh [COMMAND... | PART/PARTS]: runs each command, for instance "make -C integration node", in a clone of
# the last commit on a Debian 12 that has only what README.md names: the Rust toolchain, a C compiler, make and git.
# Without commands: .ci/release, and the targets of the four Makefiles, except those in `left_out` below; 1/3: every
# third of them. Prints the seconds and the disk use of each; the output is in target/bare-machine/logs. Fails if a
# command fails, or leaves a process, a mount or a network namespace.
#
# Each command has a root directory, mount, PID, network, IPC and UTS namespaces of its own, and reaches the network
# through slirp4netns; all of that ends with the command or this script. The roots share the downloads of cargo, Go and
# pip with each other, and with this machine only the kernel, its devices and the toolchain. Package sources, proxies
# and certificates are those of this machine. Needs root, and a Debian with rustup.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD place=$(realpath -m "${CARGO_TARGET_DIR:-target}")/bare-machine
shared=(.cargo/registry/{index,cache} go/pkg/mod/cache/download .cache/{pip,go-build})

# The first process in the namespaces: makes the mounts of a machine, and runs the command. Arguments: the root directory,
# the command, and its variables.
inside() {
    local root=$1 command=$2 device
    shift 2
    echo >"$place/started"
    mount --bind "$root" "$root"
    cd "$root"
    mount -t proc proc proc
    mount -t sysfs sysfs sys
    mount --rbind /sys/fs/cgroup sys/fs/cgroup
    mount --make-rslave sys/fs/cgroup
    mount -t tmpfs -o mode=755 tmpfs run
    mount -t tmpfs -o mode=755 tmpfs dev
    mkdir dev/{pts,shm,mqueue,net}
    for device in null zero full random urandom tty kmsg fuse kvm net/tun; do
        [ ! -e "/dev/$device" ] || cp -a "/dev/$device" "dev/$device"
    done
    mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts dev/pts
    mount -t tmpfs -o mode=1777 tmpfs dev/shm
    mount -t mqueue mqueue dev/mqueue
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    for device in stdin:0 stdout:1 stderr:2; do
        ln -s "/proc/self/fd/${device#*:}" "dev/${device%:*}"
    done
    # rustup adds targets to a layer above this machine's toolchain.
    mkdir -p "$root.rustup/upper" "$root.rustup/work"
    mount -t overlay -o "lowerdir=${RUSTUP_HOME:-$HOME/.rustup},upperdir=$root.rustup/upper,workdir=$root.rustup/work" \
        overlay root/.rustup
    for directory in "${shared[@]}"; do
        mount --bind "$place/shared/$directory" "root/$directory"
    done
    read -r -n 1 -t 60 <"$place/network"
    pivot_root . mnt
    umount --lazy /mnt
    # As systemd has it.
    mount --make-rshared /
    # shellcheck disable=SC2016 # expanded in the new root
    exec chroot . env --ignore-environment "$@" bash -uc '
        cd /root/gybe
        mounts() { cut -d " " -f 5 /proc/1/mountinfo | sort; }
        before=$(mounts) status=0
        bash -c "$0" </dev/null || status=$?
        [ "$(mounts)" = "$before" ] || { echo "left mounts:" $(comm -13 <(echo "$before") <(mounts)); status=1; }
        for entry in /proc/[0-9]* /run/netns/*; do
            case $entry in /proc/1 | "/run/netns/*") continue ;; esac
            [ ! -e "$entry" ] || { echo "left $entry: $(tr "\0" " " 2>/dev/null <"$entry/cmdline")"; status=1; }
        done
        exit "$status"' "$command"
}
if [ "${1:-}" = --inside ]; then
    shift
    inside "$@"
fi

[ "$(id -u)" = 0 ] || { echo "this makes namespaces and a root directory, so it needs root" >&2; exit 1; }
integration/setup.sh bare-machine
mkdir -p "$place/logs" "${shared[@]/#/$place/shared/}"
# A second run waits.
exec {lock}>"$place/lock"
flock "$lock"

# COMMAND|ARGUMENTS: arguments that a command needs, and smaller sizes for commands that would take hours.
table='
make lint|ALL=1
make bench|PARTS=add ARGS="--times 3"
make -C integration differential|POLICIES=20
make -C integration random-verdicts|NAMESPACES=20
make -C integration repair-race|PODS=50
make -C integration ambient-growth|PODS=100
make -C integration repair-storm|MINUTES=2
make -C integration incumbent|SETS=20 PODS=5
make -C integration fuzz|SECONDS=2
make -C integration mutants|FILES=plugin/src/target.rs KERNEL=none
make -C integration fault-runs|ADDS=10
make -C integration existing-image|APPLICATION=registry.example/application
make -C integration mesh|SCENARIOS="early sidecars"
make -C integration api-load|AGENTS=50 MINUTES=2
make -C integration bench-containerd|ARGS="--times 3"
make -C integration bench-repair|ARGS="--pods 5"
'
# Not run: targets that need the reference material, a cluster or ztunnel, that write the result of another target into
# docs/, or that are another name. The changelog has no section of the next version: .ci/release adds one, and makes a
# release.
left_out='make release|make -C manifests release|make -C integration (shared|existing|published|ambient|write-[a-z]*|bench|bare-machine)'

# commands_of DIRECTORY OPTIONS: the commands that the `make help` of a directory lists, each with its line of the table.
commands_of() {
    local target command
    sed -n 's/^\([a-z-]*\):.*## .*/\1/p' "$1/Makefile" | while read -r target; do
        command="make $2$target"
        grep -E "^$command\|" <<<"$table" || echo "$command|"
    done | grep -vE "^($left_out)\|"
}

# --- the root directory

# Prints the sources.list of Debian 12, from the mirrors of this machine.
sources() {
    local label suite mirror
    for label in Debian:bookworm Debian-Security:bookworm-security; do
        suite=${label#*:}
        mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' \
            "Label: ${label%:*}" | head -n 1)
        [ -n "$mirror" ] || { echo "no mirror of ${label%:*} is known: run apt-get update" >&2; return 1; }
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
    done
}

# Makes $place/base, which each command gets a copy of, once a day.
make_base() {
    local name
    [ -z "$(find "$place/base.complete" -mtime 0 2>/dev/null)" ] || return 0
    rm -rf "$place/base" "$place/base.complete" "$place/shared/target"
    sources >"$place/sources.list"
    apt-config dump | grep '^Acquire::' | grep -v '^Acquire::IndexTargets' >"$place/apt.conf"
    # In a mount namespace of its own: once the base's /proc was busy and stayed mounted, and each copy of the base
    # would have been as large as the disk.
    unshare --mount mmdebstrap --quiet --variant=minbase --format=directory --aptopt="$place/apt.conf" \
        --dpkgopt=force-unsafe-io \
        --include=gcc,libc6-dev,make,git,ca-certificates bookworm "$place/base" "$place/sources.list"
    cp --remove-destination /etc/ssl/certs/ca-certificates.crt "$place/base/etc/ssl/certs/"
    for name in /etc/pip.conf /etc/hosts /etc/hostname; do
        [ ! -e "$name" ] || cp --remove-destination "$name" "$place/base/etc/"
    done
    # The name server of slirp4netns, which queries this machine's.
    echo "nameserver 10.0.2.3" >"$place/base/etc/resolv.conf"
    mkdir -p "$place/base/root/"{.rustup,.cargo/bin}
    for name in rustup cargo rustc rustdoc rustfmt cargo-fmt cargo-clippy clippy-driver; do
        cp -a "${CARGO_HOME:-$HOME/.cargo}/bin/$name" "$place/base/root/.cargo/bin/"
    done
    for name in "${CARGO_HOME:-$HOME/.cargo}"/config*; do
        [ ! -e "$name" ] || cp "$name" "$place/base/root/.cargo/"
    done
    touch "$place/base.complete"
}

# The variables of a command: those of a login, and those of this machine that name mirrors, proxies and certificates.
environment() {
    local name
    printf "%s\n" HOME=/root USER=root LANG=C.UTF-8
    echo PATH=/root/.cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    env | grep -iE '^((http|https|all|no)_proxy|SSL_CERT_(FILE|DIR)|CURL_CA_BUNDLE|RUSTUP_(DIST_SERVER|UPDATE_ROOT))=' || true
    env | grep -E '^(PIP_(CERT|INDEX_URL|EXTRA_INDEX_URL)|CARGO_(HTTP|REGISTR|SOURCE)[A-Z_]*)=' || true
    ! command -v go >/dev/null || for name in GOPROXY GOSUMDB GONOSUMDB GOPRIVATE GOINSECURE; do
        echo "$name=$(go env $name)"
    done
}

# Moves what cargo compiled in a clone to the shared directory, but no program and no crate of the workspace, and no crate
# whose build script needs a package of Debian, which cargo would not run again.
keep_dependencies() {
    local target=$place/root/root/gybe/target directory kept
    for directory in "$target"/{,*-musl/}{debug,release}; do
        [ -d "$directory/deps" ] || continue
        find "$directory"/{deps,build,.fingerprint} -mindepth 1 -maxdepth 1 '(' -path '*/deps/*' ! -name '*.*' \
            -o -name '*gybe[-_]*' -o -name 'k8s-cri-*' -o -name 'rustables-*' -o -name '*-sys-*' ')' -exec rm -r '{}' +
        kept=$place/shared/target${directory#"$target"}
        rm -rf "$kept"
        mkdir -p "$kept"
        mv "$directory"/{deps,build,.fingerprint} "$kept"
    done
}

unshare="" slirp=""
# Ends all processes in the namespaces: the first of them ends last.
end() {
    [ -z "$unshare" ] || kill -KILL $(cat "/proc/$unshare/task/$unshare/children") 2>/dev/null || true
    [ -z "$slirp" ] || kill "$slirp" 2>/dev/null || true
    wait
    unshare="" slirp=""
    [ $# = 0 ] || keep_dependencies
    rm -rf "$place/root" "$place/root.rustup" "$place/started" "$place/network"
}
trap end EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

megabytes() { du -sm --total "$@" | sed -n 's/\ttotal$//p'; }

# run COMMAND: prints a row of the table.
run() {
    local root=$place/root log result=passed started network begin before
    log=$(tr -cs 'A-Za-z0-9\n' - <<<"$1")
    log=$place/logs/${log:0:100}
    end
    cp -a "$place/base" "$root"
    git clone --quiet "$here" "$root/root/gybe"
    mkdir -p "$place/shared/target" "${shared[@]/#/$root/root/}"
    cp -a "$place/shared/target" "$root/root/gybe/"
    before=$(megabytes "$root" "$place/shared")
    mkfifo "$place/started" "$place/network"
    exec {started}<>"$place/started" {network}<>"$place/network"
    begin=$SECONDS
    setpriv --pdeathsig KILL unshare --mount --pid --net --ipc --uts --fork --kill-child \
        "$0" --inside "$root" "$1" "${variables[@]}" >"$log" 2>&1 {lock}>&- {started}>&- {network}>&- &
    unshare=$!
    read -r -t 60 -u "$started"
    setpriv --pdeathsig KILL slirp4netns --configure --disable-host-loopback --ready-fd "$network" "$unshare" tap0 \
        >"$log.network" 2>&1 {lock}>&- {started}>&- &
    slirp=$!
    exec {started}>&-
    # A signal ends `wait`, but not a program in the foreground.
    wait "$unshare" || { result="failed ($?)" failed=yes; }
    unshare=""
    exec {network}>&-
    printf '%8s %8s  %s: %s\n' "$((SECONDS - begin))" \
        "$(($(megabytes "$root" "$root.rustup" "$place/shared") - before))" "$1" "$result"
    [ "$result" = passed ] || tail -n 20 "$log"
    end keep
}

make_base
mapfile -t variables < <(environment)
failed=""
printf '%8s %8s\n' seconds MB
if [[ ${1:-1/1} =~ ^([1-9][0-9]*)/([1-9][0-9]*)$ ]]; then
    part=${BASH_REMATCH[1]} parts=${BASH_REMATCH[2]}
    mapfile -t rows < <(commands_of . "" && commands_of integration "-C integration " &&
        commands_of manifests "-C manifests " && commands_of docs "-C docs " && echo ".ci/release|")
    [ "$part" -le "${#rows[@]}" ] || { echo "part $part is empty: there are ${#rows[@]} targets" >&2; exit 2; }
    for ((row = part - 1; row < ${#rows[@]}; row += parts)); do
        IFS='|' read -r command arguments <<<"${rows[row]}"
        run "$command${arguments:+ $arguments}"
    done
else
    for command; do
        run "$command"
    done
fi
[ -z "$failed" ]
