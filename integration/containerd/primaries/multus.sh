#!/bin/sh
# Multus' thin DaemonSet above flannel: its entry point embeds the first other conf file into 00-multus.conf (a temporary
# name in the same directory, renamed) and does so again when that file changes. flannel's agent runs beside it.
set -eu
sh "$(dirname "$0")/flannel.sh" &
flannel=$!
until [ -s /etc/cni/net.d/10-flannel.conflist ]; do
    kill -0 "$flannel" || exit 1
    sleep 0.05
done
"$PROGRAMS/thin_entrypoint" --multus-conf-file=auto --multus-bin-file="$PROGRAMS/multus" --cni-bin-dir=/opt/cni/bin \
    --cni-conf-dir=/etc/cni/net.d --multus-cni-conf-dir=/etc/cni/multus/net.d --multus-autoconfig-dir=/etc/cni/net.d &
wait
