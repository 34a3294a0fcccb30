#!/bin/sh
# Not at an upgrade, where dpkg's argument is `upgrade`, and rpm's the number of versions that stay.
set -e
case $1 in remove | deconfigure | 0) ;; *) exit 0 ;; esac
if [ -d /run/systemd/system ]; then systemctl disable --now gybe-node.service; fi
# The entry goes first; plugin and gybe stay in the plugin directory as long as a sandbox may need them.
if ! /usr/lib/gybe/gybe uninstall; then
    echo "gybe: the node's CNI configuration still names gybe-cni; gybe uninstall says why" >&2
    exit 1
fi
