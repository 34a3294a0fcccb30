#!/bin/sh
# Unpacks the iptables and the nft of four Debian suites under target/iptables/SUITE, each with the C library it was
# built for, and writes the programs that tests run into target/iptables/SUITE/programs. Suites already
# unpacked are skipped. Installs no package except netbase, for /etc/protocols.
set -eu
cd "$(dirname "$0")/../.."

integration/setup.sh iptables
# shellcheck source=integration/setup-lock.sh
. integration/setup-lock.sh

versions=${CARGO_TARGET_DIR:-target}/iptables
suites="bullseye bookworm trixie sid"
packages="iptables libxtables12 libip4tc2 libip6tc2 libnftnl11 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libc6
    nftables libnftables1 libjansson4 libgmp10 libedit2 libbsd0 libmd0 libtinfo6"

# write_program NAME BINARY [APPLET]: writes $tree/programs/NAME, which uses that tree's own loader, libraries and
# extensions.
write_program() {
    program=$tree/programs/$1
    cat >"$program" <<PROGRAM
#!/bin/sh
tree=\${0%/*}/..
export XTABLES_LIBDIR="\$tree/usr/lib/$architecture/xtables"
exec "\$tree/$loader" --library-path "\$tree/lib/$architecture:\$tree/usr/lib/$architecture" \\
    "\$tree/usr/sbin/$2" ${3:-} "\$@"
PROGRAM
    chmod 0755 "$program"
}

# The loader is in a directory named after the architecture, below lib or, in newer suites, usr/lib.
find_loader() {
    (cd "$tree" && for found in lib/*/ld-linux-*.so.* usr/lib/*/ld-linux-*.so.*; do
        [ ! -e "$found" ] || echo "$found"
    done) | head -n 1
}

for suite in $suites; do
    tree=$versions/$suite
    # The stamp has the packages of the run that made it.
    [ "$(cat "$tree/programs/.complete" 2>/dev/null)" != "$packages" ] || continue
    rm -rf "$tree"
    # shellcheck disable=SC2086 # $packages is split into words on purpose
    integration/debian-unpack.sh "$tree" "$suite" $packages
    loader=$(find_loader)
    if [ -z "$loader" ]; then
        echo "libc6 of $suite has no ld-linux-*.so below lib or usr/lib: this architecture is not supported here" >&2
        exit 1
    fi
    architecture=$(basename "$(dirname "$loader")")
    mkdir "$tree/programs"
    for family in iptables ip6tables; do
        for variant in nft legacy; do
            for verb in save restore; do
                write_program "$family-$variant-$verb" "xtables-$variant-multi" "$family-$verb"
            done
        done
    done
    write_program nft nft
    echo "$packages" >"$tree/programs/.complete"
done
