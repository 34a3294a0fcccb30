#!/bin/sh
# Calico's init container `install-cni`: `install` writes calico-kubeconfig and 10-calico.conflist in place, 0644. Without
# the program its write is simulated, after cni-plugin/pkg/install/install.go. Its plugin `calico` is replaced by `ptp`: the
# real one needs Calico's resources in the API server.
set -eu
cat >/opt/cni/bin/.calico <<'PLUGIN'
#!/bin/sh
# ptp ignores the keys that it does not know.
sed 's/"type": *"calico-ipam"/"type":"host-local","subnet":"10.244.0.0\/24"/; s/"type": *"calico"/"type":"ptp"/' | exec /opt/cni/bin/ptp
PLUGIN
ln -sf host-local /opt/cni/bin/calico-ipam
chmod 0755 /opt/cni/bin/.calico
# A program that runs cannot be written in place.
mv /opt/cni/bin/.calico /opt/cni/bin/calico
# The template of the ConfigMap calico-config.
CNI_NETWORK_CONFIG='{
  "name": "k8s-pod-network",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "calico",
      "log_level": "info",
      "datastore_type": "kubernetes",
      "nodename": "__KUBERNETES_NODE_NAME__",
      "mtu": 1500,
      "ipam": { "type": "calico-ipam" },
      "policy": { "type": "k8s" },
      "kubernetes": { "kubeconfig": "__KUBECONFIG_FILEPATH__" }
    },
    { "type": "portmap", "snat": true, "capabilities": { "portMappings": true } },
    { "type": "bandwidth", "capabilities": { "bandwidth": true } }
  ]
}'
export CNI_NETWORK_CONFIG
if [ ! -x "$PROGRAMS/calico-install" ]; then
    printf '%s' "$CNI_NETWORK_CONFIG" >/etc/cni/net.d/10-calico.conflist
    exec sleep infinity
fi
# It expects the host's directories below /host, so it runs in a root of its own.
root=/run/calico-root
mkdir -p "$root"
unshare --mount sh -eu -c '
    mount -t tmpfs tmpfs '"$root"'
    cd '"$root"'
    mkdir -p host/etc/cni/net.d host/opt/cni/bin opt/cni/bin run/secrets var proc etc tmp
    ln -s /run var/run
    mount --bind /etc/cni/net.d host/etc/cni/net.d
    mount --bind /opt/cni/bin host/opt/cni/bin
    mount --rbind /run/secrets run/secrets
    mount --bind /proc proc
    cp "$PROGRAMS/calico-install" install
    cp /etc/hosts etc/hosts
    CNI_CONF_NAME=10-calico.conflist SLEEP=false exec chroot . /install'
exec sleep infinity
