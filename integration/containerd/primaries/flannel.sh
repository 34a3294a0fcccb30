#!/bin/sh
# flannel's DaemonSet: the init container `install-cni-plugin` copies the plugin, `install-cni` the conf file of the
# ConfigMap (both `cp -f`: the existing file is written in place), then flanneld runs.
set -eu
cp -f "$PROGRAMS/flannel" /opt/cni/bin/flannel
mkdir -p /etc/kube-flannel
cat >/etc/kube-flannel/cni-conf.json <<'JSON'
{
  "name": "cbr0",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "flannel",
      "delegate": {
        "hairpinMode": true,
        "isDefaultGateway": true
      }
    },
    {
      "type": "portmap",
      "capabilities": {
        "portMappings": true
      }
    }
  ]
}
JSON
echo '{ "Network": "10.244.0.0/16", "Backend": { "Type": "host-gw" } }' >/etc/kube-flannel/net-conf.json
cp -f /etc/kube-flannel/cni-conf.json /etc/cni/net.d/10-flannel.conflist
NODE_NAME=$(hostname) POD_NAME=kube-flannel POD_NAMESPACE=kube-flannel \
    exec "$PROGRAMS/flanneld" --ip-masq --kube-subnet-mgr --iface=eth0
