#!/bin/sh
# debian-unpack.sh DIR SUITE PACKAGE...: unpacks packages of another suite of Debian's below DIR, checked
# by Debian's keys. Nothing is installed, and nothing is added to this machine's package sources.
# A PACKAGE that begins with ^ is a regular expression; the newest package with such a name is unpacked, and printed.
# ARCHITECTURE selects another architecture than this machine's.
set -eu

into=$1 suite=$2
shift 2
architecture=${ARCHITECTURE:-$(dpkg --print-architecture)}
label=Debian
case $suite in *-security) label=Debian-Security ;; esac

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' INT TERM HUP

find_mirror() {
    apt-get indextargets --format '$(REPO_URI)' \
        'Created-By: Packages' 'Origin: Debian' "Label: $label" | head -n 1
}
mirror=$(find_mirror)
# Without package lists apt cannot tell which of the sources is Debian's mirror.
if [ -z "$mirror" ] && [ "$(id -u)" = 0 ]; then
    apt-get update -qq
    mirror=$(find_mirror)
fi
if [ -z "$mirror" ]; then
    echo "no mirror of $label among this machine's package sources (apt-get indextargets names none)" >&2
    echo "add one and run apt-get update, then do this again" >&2
    exit 1
fi
mkdir -p "$scratch/state/lists/partial" "$scratch/cache/archives/partial" "$scratch/packages" "$into"
: >"$scratch/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$scratch/sources.list"

# private_apt get|cache ...: apt with directories and package sources of its own: the machine's mirror, Debian's keys,
# one suite.
private_apt() {
    program=apt-$1
    shift
    "$program" -qq -o "Dir::State=$scratch/state" -o "Dir::State::Status=$scratch/status" \
        -o "Dir::Cache=$scratch/cache" -o "Dir::Etc::SourceList=$scratch/sources.list" \
        -o Dir::Etc::SourceParts=/dev/null -o Acquire::Languages=none \
        -o "APT::Architecture=$architecture" -o "APT::Architectures=$architecture" \
        -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root "$@"
}

# newest REGULAR_EXPRESSION
newest() {
    name=$(private_apt cache pkgnames | grep -E "$1" | sort -V | tail -n 1)
    if [ -z "$name" ]; then
        echo "$suite has no package for $architecture whose name matches $1" >&2
        return 1
    fi
    echo "$name"
}

private_apt get update
packages=""
for package; do
    case $package in
    ^*)
        package=$(newest "$package")
        echo "$package"
        ;;
    esac
    packages="$packages $package"
done
# shellcheck disable=SC2086 # the list is split into words
(cd "$scratch/packages" && private_apt get download $packages)
for package in "$scratch"/packages/*.deb; do
    dpkg-deb -x "$package" "$into"
done
