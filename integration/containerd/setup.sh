#!/bin/sh
# Installs what these tests run: Debian's containerd, runc and reference plugins as packages, and the
# containerd of two newer suites unpacked under target/runtimes. Skips what is installed. Starts no
# service, and adds nothing to this machine's package sources.
set -eu
cd "$(dirname "$0")/../.."

runtimes=${CARGO_TARGET_DIR:-target}/runtimes

# generation:suite:package. The 1.1.1 plugins of Debian 12 do not implement CNI 1.1; newer ones do.
unpacked="1.7:trixie:containerd 2.x:sid:containerd 2.x:sid:containernetworking-plugins"

# program:package
installed="containerd:containerd runc:runc iptables:iptables unshare:util-linux nsenter:util-linux
    /usr/lib/cni/bridge:containernetworking-plugins protoc:protobuf-compiler"

missing=""
for pair in $installed; do
    program=${pair%%:*}
    [ -x "$program" ] || [ -x "/usr/sbin/$program" ] || command -v "$program" >/dev/null 2>&1 ||
        missing="$missing ${pair#*:}"
done

stamp() { echo "$runtimes/$1/.$2"; }

to_unpack=""
for entry in $unpacked; do
    generation=${entry%%:*}
    [ -e "$(stamp "$generation" "${entry##*:}")" ] || to_unpack="$to_unpack $entry"
done
[ -n "$missing$to_unpack" ] || exit 0

if [ -n "$missing" ] && [ "$(id -u)" != 0 ]; then
    echo "these tests need the Debian packages:$missing" >&2
    echo "install them:  sudo integration/containerd/setup.sh" >&2
    exit 1
fi

scratch=$(mktemp -d)
policy=/usr/sbin/policy-rc.d

# While policy-rc.d exits with 101, packages do not start their services (policy-rc.d(8)). An existing
# policy-rc.d is restored at the end.
forbid_services() {
    [ ! -e "$policy" ] || mv "$policy" "$scratch/policy-rc.d"
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 0755 "$policy"
    forbidden=yes
}

restore() {
    if [ "${forbidden:-}" = yes ]; then
        rm -f "$policy"
        [ ! -e "$scratch/policy-rc.d" ] || mv "$scratch/policy-rc.d" "$policy"
    fi
    rm -rf "$scratch"
}
trap restore EXIT
trap 'exit 1' INT TERM HUP

if [ -n "$missing" ]; then
    forbid_services
    apt-get update -qq
    # shellcheck disable=SC2086 # the list is split into words
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        -o DPkg::Lock::Timeout=300 $missing >/dev/null
    # The service must not start at the next boot either: these tests start their own containerd.
    case " $missing " in
    *" containerd "*) [ ! -d /run/systemd/system ] || systemctl --quiet disable containerd.service ;;
    esac
fi
[ -n "$to_unpack" ] || exit 0

for entry in $to_unpack; do
    generation=${entry%%:*} package=${entry##*:} suite=${entry#*:}
    integration/debian-unpack.sh "$runtimes/$generation" "${suite%%:*}" "$package"
    touch "$(stamp "$generation" "$package")"
done
