#!/bin/sh
# setup.sh [KIND...]: installs the Debian packages that targets of the Makefiles need, of each of these kinds (default:
# tests). A caller who may not install packages gets the names of the missing ones, and an error.
#
# Runs beside another apt-get: it has package lists and archives of its own, and waits for dpkg's lock.
set -eu

# PROGRAM:PACKAGE, or a file; without a program, dpkg knows whether the package is there.
needed=""
for kind in "${@:-tests}"; do
    case $kind in
    # What most tests run.
    tests)
        needed="$needed nft:nftables iptables-nft-restore:iptables strace:strace unshare:util-linux newuidmap:uidmap
            ip:iproute2 strip:binutils readelf:binutils"
        ;;
    # What the crates outside the default members are built with: protoc, and the libraries of the crates nftnl and mnl.
    outside) needed="$needed protoc:protobuf-compiler pkg-config:pkg-config :libnftnl-dev :libmnl-dev" ;;
    # rustables reads the kernel's headers through libclang.
    referees) needed="$needed :libclang-dev" ;;
    # What reads the results of mutation testing, and other results in JSON.
    json) needed="$needed jq:jq" ;;
    # The linker of the fuzzers.
    fuzz) needed="$needed g++:g++" ;;
    # A node with containerd, which integration/containerd/setup.sh unpacks.
    node)
        needed="$needed runc:runc iptables:iptables nsenter:util-linux ip:iproute2
            /usr/lib/cni/bridge:containernetworking-plugins"
        ;;
    # The programs for arm64.
    arm64)
        needed="$needed aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu qemu-aarch64-static:qemu-user-static
            :libc6-dev-arm64-cross"
        ;;
    # What lists the contents of the image, and what builds it.
    contents) needed="$needed jq:jq strings:binutils" ;;
    image) needed="$needed jq:jq strings:binutils buildah:buildah zstd:zstd" ;;
    # What checks the workflows, what checks packages, and what pushes an image to a registry.
    workflows) needed="$needed shellcheck:shellcheck :python3-venv" ;;
    packages) needed="$needed mmdebstrap:mmdebstrap unshare:util-linux" ;;
    publish) needed="$needed jq:jq skopeo:skopeo :ca-certificates" ;;
    # Versions of iptables, which read the names of protocols.
    iptables) needed="$needed /etc/protocols:netbase" ;;
    # Virtual machines.
    kernels) needed="$needed cpio:cpio xz:xz-utils depmod:kmod readelf:binutils" ;;
    qemu-amd64) needed="$needed qemu-system-x86_64:qemu-system-x86" ;;
    qemu-arm64) needed="$needed qemu-system-aarch64:qemu-system-arm" ;;
    # A cluster, whose programs the scenarios signal.
    cluster) needed="$needed pgrep:procps ip:iproute2" ;;
    # runc is built with a C library, and Envoy is a package of the Python index.
    mesh) needed="$needed pkg-config:pkg-config cc:gcc pip3:python3-pip" ;;
    venv) needed="$needed :python3-venv" ;;
    # An API server's certificate, and the processes of the agents beside it.
    api-server) needed="$needed openssl:openssl ip:iproute2 pgrep:procps" ;;
    bare-machine) needed="$needed mmdebstrap:mmdebstrap slirp4netns:slirp4netns setpriv:util-linux" ;;
    *)
        echo "setup.sh: there is no kind $kind" >&2
        exit 2
        ;;
    esac
done

# Two rustups at once disturb each other.
case " $* " in
*" arm64 "*) flock "$(rustc --print sysroot)" rustup target add aarch64-unknown-linux-musl ;;
esac

missing=""
for pair in $needed; do
    program=${pair%%:*} package=${pair#*:}
    if [ -z "$program" ]; then
        dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
    else
        command -v "$program" >/dev/null 2>&1 || [ -e "${program##[!/]*}" ] || [ -x "/usr/sbin/$program" ] || missing="$missing $package"
    fi
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "missing Debian packages:$missing" >&2
    echo "install them:  sudo apt-get install --no-install-recommends$missing" >&2
    exit 1
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' INT TERM HUP
# apt's user for downloads reads them.
chmod 0755 "$scratch"
# These hooks belong to the machine's package lists; Docker's images delete the machine's archives in one.
cat >"$scratch/apt.conf" <<CONF
Dir::State::Lists "$scratch/lists";
Dir::Cache "$scratch/cache";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
CONF
mkdir -p "$scratch/lists/partial" "$scratch/cache/archives/partial"
apt-get -c "$scratch/apt.conf" -qq update
# shellcheck disable=SC2086 # the list is split into words
DEBIAN_FRONTEND=noninteractive apt-get -c "$scratch/apt.conf" -qq -y -o DPkg::Lock::Timeout=600 \
    install --no-install-recommends --no-remove $missing >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
