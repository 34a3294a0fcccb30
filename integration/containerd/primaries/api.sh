#!/bin/sh
# api.sh PROGRAMS: an API server with one node, in the network namespace of the caller, and the service account's files
# where the agents of a primary plugin look for them. Writes `the API server serves` to standard error and waits.
set -eu
cd "$(dirname "$0")/../../.."
programs=$1 data=/run/gybe/api
# Of kubectl's cache.
export HOME=$data
mkdir -p "$data" /run/secrets/kubernetes.io/serviceaccount
# The address of the node, as on a machine with one network card. Forwarding is what the kubelet requires.
ip link add eth0 type veth peer name switch
ip link set switch up
ip address add 192.0.2.1/24 dev eth0
ip link set eth0 up
ip route add default via 192.0.2.254
echo 1 >/proc/sys/net/ipv4/ip_forward

. integration/cluster/api-server.sh
start_api_server kube-apiserver --disable-admission-plugins=ServiceAccount
kubectl create -f - >/dev/null <<YAML
apiVersion: v1
kind: Node
metadata: { name: $(hostname), annotations: { node.alpha.kubernetes.io/ttl: "0" } }
spec: { podCIDR: 10.244.0.0/24, podCIDRs: [10.244.0.0/24] }
YAML
kubectl patch node "$(hostname)" --subresource=status --type=merge \
    -p '{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}' >/dev/null
# Of Calico's `install`, and of pods.
until_at_most 60 kubectl -n default create serviceaccount default >/dev/null
until_at_most 60 kubectl -n kube-system create serviceaccount calico-cni-plugin >/dev/null
cd /run/secrets/kubernetes.io/serviceaccount
printf admin >token
cp "$data/server.crt" ca.crt
printf kube-system >namespace
echo 'the API server serves' >&2
wait
