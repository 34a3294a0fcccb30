#!/bin/bash
# api-load.sh [AGENTS [MINUTES]]: starts this many agents (500) at once with a real API server, each as the agent of a node
# with ten pods, waits until all know their pods, and then for these minutes (25). Prints the requests that the API server
# counted: per agent for the start, and per second afterwards. Needs dist/ (make build) and target/cluster (setup.sh).
#
# The agents share a kernel, and so the 128 inotify instances of a user: those beyond them read their directories every
# second, which sends no request.
set -euo pipefail
cd "$(dirname "$0")/../.."
agents=${1:-500} minutes=${2:-25}
programs=$PWD/target/cluster gybe=$PWD/dist/gybe

if [ -z "${GYBE_IN_NAMESPACE:-}" ]; then
    GYBE_IN_NAMESPACE=1 exec unshare --net --mount --pid --fork --kill-child --mount-proc "$0" "$@"
fi

data=$(mktemp -d)
# SIGKILL: on SIGTERM the API server waits minutes for etcd, which has already ended.
trap '[ $? = 0 ] || tail -n 5 "$data/1/log" >&2 || true
      { kill -KILL $(jobs -p) || true; wait; } 2>/dev/null; rm -rf "$data"' EXIT
mount -t tmpfs tmpfs /run
# shellcheck source=integration/cluster/api-server.sh
. integration/cluster/api-server.sh
echo "agent,system:serviceaccount:gybe-system:gybe-node,agent,system:serviceaccounts" >"$data/tokens.csv"
start_api_server kube-apiserver --disable-admission-plugins=ServiceAccount
kubectl apply -k manifests/overlays/default >/dev/null

# All agents see one node's findings, and programs that answer as the real ones do.
"$gybe" probe --keep >/dev/null
echo '{"runtimes":[]}' >"$data/runtime.json"
mkdir "$data/image"
for program in gybe gybe-cni; do
    printf '#!/bin/sh\necho '"'"'{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}'"'"'\n' >"$data/image/$program"
    chmod 755 "$data/image/$program"
done
objects() {
    for number in $(seq "$agents"); do
        echo '{ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-'"$number"'" } }'
        for pod in $(seq 10); do
            echo '{ "apiVersion": "v1", "kind": "Pod", "metadata": { "namespace": "default", "name": "pod-'"$number-$pod"'",
              "annotations": { "sidecar.istio.io/status": "{}" } }, "spec": { "nodeName": "node-'"$number"'", "containers":
              [{ "name": "istio-proxy", "image": "proxy", "env": [{ "name": "PADDING", "value": "'"$padding"'" }] }] } }'
        done
    done
}
# An injected pod has some 12 KiB.
padding=$(printf 'x%.0s' $(seq 11000))
objects | kubectl create --validate=false -f - >"$data/created"
echo "$(grep -c ^pod/ "$data/created") pods on $(grep -c ^node/ "$data/created") nodes"

for number in $(seq "$agents"); do
    node=$data/$number
    mkdir -p "$node"/{net.d,bin,cache/results,config,account,probe,run}
    cp /run/gybe/probe.json "$data/runtime.json" "$node/probe/"
    cp "$data/server.crt" "$node/account/ca.crt"
    printf agent >"$node/account/token"
    printf gybe-system >"$node/account/namespace"
    touch "$node/bin/bridge"
    echo '{ "cniVersion": "1.0.0", "name": "n", "plugins": [{ "type": "bridge" }] }' >"$node/net.d/10-n.conflist"
done
start() {
    node=$data/$1
    exec env -i MOUNTED_CNI_NET_DIR="$node/net.d" MOUNTED_CNI_BIN_DIR="$node/bin" MOUNTED_CNI_CACHE_DIR="$node/cache" \
        GYBE_PROGRAMS_DIR="$data/image" GYBE_CONFIG_DIR="$node/config" GYBE_SERVICE_ACCOUNT_DIR="$node/account" \
        GYBE_PROBE_DIR="$node/probe" GYBE_ISTIO_RUN_DIR="$node/istio" CNI_AGENT_RUN_DIR="$node/run" \
        HEALTH_ADDRESS=127.0.0.1:0 MONITORING_ADDRESS=127.0.0.1:0 POD_NAMESPACE=gybe-system \
        KUBERNETES_SERVICE_HOST=127.0.0.1 KUBERNETES_SERVICE_PORT=6443 KUBERNETES_NODE_NAME="node-$1" \
        "$gybe" node >"$node/log" 2>&1
}
# Requests by verb, resource and code, without those of other clients: leases, namespaces, services and the like.
counts() {
    kubectl get --raw /metrics | awk -F'[{}]' '/^apiserver_request_total/ {
        delete label; count = split($2, pairs, ",")
        for (i = 1; i <= count; i++) { split(pairs[i], pair, "="); gsub(/"/, "", pair[2]); label[pair[1]] = pair[2] }
        if (label["resource"] ~ /^(pods|nodes|daemonsets|events)$/)
            total[label["verb"] " " label["resource"] " " label["code"]] += $3
    } END { for (key in total) print key, total[key] }' | sort >"$1"
}
added() {
    awk 'NR == FNR { before[$1 " " $2 " " $3] = $4; next } { print $1, $2, $3, $4 - before[$1 " " $2 " " $3] }' "$1" "$2" |
        awk '$4 != 0'
}
know_their_pods() { [ "$(grep -l 'pods are known' "$data"/*/log | wc -l)" -ge "$agents" ]; }
processor() { awk '{ print ($14 + $15) / 100 }' "/proc/$(pgrep -x kube-apiserver)/stat"; }

counts "$data/before"
used=$(processor) begin=$(date +%s.%N)
for number in $(seq "$agents"); do
    start "$number" &
done
until_at_most 600 know_their_pods
echo "all $agents agents know their pods after $(echo "$(date +%s.%N) $begin" | awk '{ printf "%.1f", $1 - $2 }') s;" \
    "the API server used $(echo "$(processor) $used" | awk '{ printf "%.1f", $1 - $2 }') s of a processor"
# The requests of a start, among them events.
sleep 60
counts "$data/started"
echo "requests of the start, by verb, resource and code (a watch is counted when it ends):"
added "$data/before" "$data/started"
echo "open watches:"
kubectl get --raw /metrics | grep '^apiserver_longrunning_requests' | grep -E 'resource="(pods|nodes)"' | grep WATCH |
    sed -E 's/.*[,{]resource="([^"]*)".* ([0-9]+)$/\1 \2/'
sleep $((minutes * 60))
counts "$data/after"
echo "requests of $minutes minutes afterwards:"
added "$data/started" "$data/after" | tee "$data/steady"
awk -v agents="$agents" -v seconds=$((minutes * 60)) '{ sum += $4 } END {
    printf "%.2f a second from %d agents, %.1f from 5,000\n", sum / seconds, agents, sum / seconds * 5000 / agents }' "$data/steady"
echo "resident memory of an agent, median: $(pgrep -f "$gybe node" | xargs -I{} awk '/VmRSS/ { print $2 }' /proc/{}/status |
    sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }') KiB"
