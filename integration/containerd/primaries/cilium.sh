#!/bin/sh
# The part of Cilium's agent that keeps its conf file: 05-cilium.conflist, 0600, a temporary name in the same directory,
# renamed; with `cni.exclusive` (CILIUM_EXCLUSIVE, the chart's default) again whenever the directory changes, and other
# conf files are renamed. The plugin cilium-cni is replaced by `ptp`: the real one needs the agent with its eBPF programs.
set -eu
cat >/opt/cni/bin/.cilium-cni <<'PLUGIN'
#!/bin/sh
sed 's/"type": *"cilium-cni"/"type":"ptp","ipam":{"type":"host-local","subnet":"10.244.0.0\/24","routes":[{"dst":"0.0.0.0\/0"}]}/' | exec /opt/cni/bin/ptp
PLUGIN
chmod 0755 /opt/cni/bin/.cilium-cni
# A program that runs cannot be written in place.
mv /opt/cni/bin/.cilium-cni /opt/cni/bin/cilium-cni
exec "$PROGRAMS/cilium-conf" --write-cni-conf-when-ready=/etc/cni/net.d/05-cilium.conflist \
    --cni-exclusive="${CILIUM_EXCLUSIVE:-true}"
