#!/bin/sh
# setup.sh [KERNEL...]: unpacks what the virtual machines of the kernel tests boot, under target/kernels: for each
# architecture an initrd with busybox and iptables, and for each kernel (all of them without arguments) its image and an
# initrd with its modules. A kernel that has been unpacked is not fetched again; delete its directory to get the newest
# of its series. A kernel that its mirror does not have is reported, and the tests fail.
set -eu
cd "$(dirname "$0")/../.."

kernels=${CARGO_TARGET_DIR:-target}/kernels

# NAME:ARCHITECTURE:SUITE:VERSION, VERSION as a regular expression of the package's name. From Linux 6.19 on the package
# linux-image-VERSION is empty, and linux-binary-VERSION and linux-modules-VERSION have its content.
series="
    5.10:amd64:bullseye-security:5\.10\.0-[0-9]+
    6.1:amd64:bookworm-security:6\.1\.0-[0-9]+
    6.12:amd64:trixie-security:6\.12\.[0-9]+\+deb13(\.[0-9]+)?
    backports:amd64:trixie-backports:[0-9.]+\+deb13(\.[0-9]+)?
    sid:amd64:sid:[0-9.]+\+deb[0-9.]+
    6.12-arm64:arm64:trixie-security:6\.12\.[0-9]+\+deb13(\.[0-9]+)?
"

selected=""
for kernel in $series; do
    name=${kernel%%:*}
    case " ${*:-$name} " in *" $name "*) selected="$selected $kernel" ;; esac
done

kinds=kernels
case $selected in *:amd64:*) kinds="$kinds qemu-amd64" ;; esac
case $selected in *:arm64:*) kinds="$kinds qemu-arm64" ;; esac
# shellcheck disable=SC2086 # the list is split into words
integration/setup.sh $kinds
# shellcheck source=integration/setup-lock.sh
. integration/setup-lock.sh

# pack DIR FILE: writes the content of DIR as an initrd.
pack() {
    (cd "$1" && find . | cpio --quiet --create --format newc --owner 0:0) >"$2.new"
    mv "$2.new" "$2"
}

# make_base ARCHITECTURE: an initrd with busybox and the iptables of Debian 12.
make_base() {
    base=$kernels/base-$1
    [ ! -e "$base.cpio" ] || return 0
    rm -rf "$base"
    ARCHITECTURE=$1 integration/debian-unpack.sh "$base" bookworm busybox-static iptables libxtables12 libip4tc2 \
        libip6tc2 libnftnl11 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libc6 netbase
    rm -rf "$base/usr/share" "$base"/lib/*/gconv "$base"/usr/lib/*/gconv
    mkdir -p "$base/sbin" "$base/proc" "$base/sys" "$base/dev" "$base/run" "$base/tmp" "$base/gybe"
    for link in bin/sh sbin/modprobe; do ln -s /bin/busybox "$base/$link"; done
    pack "$base" "$base.cpio"
}

# without_inet_nat MODULE: changes nft_chain_nat so that nftables has address translation in the families ip and ip6
# alone, as before Linux 5.2: the chain type of the family inet becomes one of the family arp, which has no such chains.
without_inet_nat() {
    # shellcheck disable=SC2046 # the section's number and the offset in it
    set -- "$1" $(readelf -sW "$1" | awk '$8 == "nft_chain_nat_inet" { print $7, $2 }')
    section=$(readelf -SW "$1" | tr -d '[]' | awk -v number="$2" '$1 == number { print $5 }')
    # struct nft_chain_type: a pointer, the type (2: nat), the family (1: inet).
    at=$((0x$section + 0x$3 + 8))
    # shellcheck disable=SC2046 # the two numbers
    set -- "$1" $(od -An -t u4 -j "$at" -N 8 "$1")
    if [ "$2 $3" != "2 1" ]; then
        echo "$1 has no nft_chain_nat_inet of the form that this script knows" >&2
        return 1
    fi
    printf '\003' | dd of="$1" bs=1 seek=$((at + 4)) conv=notrunc status=none
    # The kernel loads a module without a signature, but not one with a wrong signature.
    if tail -c 28 "$1" | grep -q 'Module signature appended'; then truncate -s -1 "$1"; fi
}

# unpack_kernel NAME ARCHITECTURE SUITE VERSION
unpack_kernel() {
    tree=$kernels/$1
    [ ! -e "$tree/modules.cpio" ] || return 0
    rm -rf "$tree"
    mkdir -p "$tree/root"
    (
        ARCHITECTURE=$2 integration/debian-unpack.sh "$tree/root" "$3" \
            "^linux-binary-$4-cloud-$2\$" "^linux-modules-$4-cloud-$2\$" ||
            ARCHITECTURE=$2 integration/debian-unpack.sh "$tree/root" "$3" "^linux-image-$4-cloud-$2\$"
    ) >"$tree/packages" 2>"$tree/missing" || return 0
    rm "$tree/missing"
    for modules in "$tree"/root/lib/modules/* "$tree"/root/usr/lib/modules/*; do
        [ ! -d "$modules/kernel" ] || break
    done
    release=${modules##*/}
    into=$tree/initrd/lib/modules/$release
    mkdir -p "$into/kernel/net" "$into/kernel/drivers/net"
    for list in modules.builtin modules.builtin.modinfo modules.order; do
        [ ! -e "$modules/$list" ] || cp "$modules/$list" "$into/"
    done
    for part in net/netfilter net/ipv4 net/ipv6 lib crypto; do
        [ ! -d "$modules/kernel/$part" ] || cp -r "$modules/kernel/$part" "$into/kernel/${part%/*}/"
    done
    cp "$modules"/kernel/drivers/net/veth.ko* "$into/kernel/drivers/net/"
    find "$into" -name '*.xz' -exec xz -d {} +
    PATH="$PATH:/usr/sbin:/sbin" depmod -b "$tree/initrd" "$release"
    changed=$tree/initrd/lib/modules/changed
    mkdir "$changed"
    find "$into" -name nft_chain_nat.ko -exec cp {} "$changed/" \;
    # Only a machine that needs the changed module fails without it.
    without_inet_nat "$changed/nft_chain_nat.ko" || rm -f "$changed/nft_chain_nat.ko"
    for image in "$modules/vmlinuz" "$tree/root/boot/vmlinuz-$release"; do
        [ ! -e "$image" ] || cp "$image" "$tree/vmlinuz"
    done
    echo "$release" >"$tree/release"
    rm -rf "$tree/root"
    pack "$tree/initrd" "$tree/modules.cpio"
}

mkdir -p "$kernels"
for kernel in $selected; do
    IFS=: read -r name architecture suite version <<KERNEL
$kernel
KERNEL
    make_base "$architecture"
    unpack_kernel "$name" "$architecture" "$suite" "$version"
done
