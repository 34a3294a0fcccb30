#!/bin/sh
# server-check.sh DIRECTORY [VERSION]: installs the chart for each platform, and with the values of manifests/chart-values,
# in a real API server, which validates and stores the objects; then upgrades, rolls back and deletes it, and sends
# requests that the policies for pods/status allow or refuse. No node runs, so the Job before the deletion fails, or is
# left out. DIRECTORY has etcd, kube-apiserver (of VERSION in kubernetes-VERSION) and kubectl, as `make -C manifests chart`
# builds them (target/cluster). Runs in a network namespace of its own, with the helm that manifests/build.sh has built.
set -eu
cd "$(dirname "$0")/.."
programs=$(realpath "$1") apiserver=${2:+kubernetes-$2/}kube-apiserver

if [ -z "${GYBE_IN_NAMESPACE:-}" ]; then
    GYBE_IN_NAMESPACE=1 exec unshare --net --pid --fork --kill-child --mount-proc "$0" "$programs" ${2:+"$2"}
fi

helm=$(manifests/tool.sh helm)
data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT
export HELM_CACHE_HOME="$data" HELM_CONFIG_HOME="$data" HELM_DATA_HOME="$data"
# shellcheck source=integration/cluster/api-server.sh
. integration/cluster/api-server.sh
start_api_server "$apiserver"
# The custom resources of Multus and of the Prometheus Operator, of any content.
for resource in k8s.cni.cncf.io/NetworkAttachmentDefinition/network-attachment-definitions \
    monitoring.coreos.com/PodMonitor/podmonitors monitoring.coreos.com/ServiceMonitor/servicemonitors \
    monitoring.coreos.com/PrometheusRule/prometheusrules; do
    group=${resource%%/*} kind=${resource#*/} plural=${resource##*/}
    kind=${kind%/*}
    kubectl apply -f - >/dev/null <<YAML
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: { name: $plural.$group }
spec:
  group: $group
  names: { kind: $kind, plural: $plural }
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema: { openAPIV3Schema: { type: object, x-kubernetes-preserve-unknown-fields: true } }
YAML
done
kubectl wait --for=condition=Established --timeout=60s crd --all >/dev/null
kubectl create namespace gybe-system >/dev/null

# release VERB ARGUMENT...
release() {
    verb=$1
    shift
    "$helm" "$verb" gybe ${chart:+"$chart"} --namespace gybe-system "$@" >"$data/helm.log" 2>&1 ||
        { cat "$data/helm.log" >&2 && exit 1; }
}
# Fails with kubectl: without its exit code an error would be an empty list.
names() {
    kinds=serviceaccounts,configmaps,daemonsets,roles,rolebindings,services,networkpolicies,resourcequotas
    kubectl -n gybe-system get "$kinds,podmonitors,servicemonitors,prometheusrules" \
        -l app.kubernetes.io/part-of=gybe -o name >"$data/names"
    sort "$data/names"
}
for platform in $(sed -n 's/^\([a-z0-9]*\):.*/\1/p' manifests/chart/files/platforms.yaml); do
    chart=manifests/chart release install --set "platform=$platform"
    chart='' release uninstall --no-hooks
    echo "installed and deleted: $platform"
done
chart=manifests/chart release install -f manifests/chart-values/all.yaml
all=$(names)
chart=manifests/chart release upgrade -f manifests/chart-values/pools.yaml
pools=$(names)
chart=manifests/chart release upgrade -f manifests/chart-values/istio-cni.yaml --set serviceMonitor.enabled=true
chart='' release rollback 1
restored=$(names)
[ "$restored" = "$all" ] || { echo "$restored" && exit 1; }
echo "$pools" | grep -q daemonset.apps/gybe-node-canary
# Without nodes the Job before the deletion does not end: nothing is deleted, and a rollback sets the mode again.
"$helm" get hooks gybe --namespace gybe-system >"$data/hooks"
grep -q 'name: gybe-leave' "$data/hooks"
if "$helm" uninstall gybe --namespace gybe-system --timeout 5s >"$data/helm.log" 2>&1; then
    echo "the chart is deleted without its Job" >&2
    exit 1
fi
grep -Eq 'timed out|deadline' "$data/helm.log" || { cat "$data/helm.log" >&2 && exit 1; }
kubectl -n gybe-system patch configmap gybe-config --type merge --patch '{"data":{"mode":"leave"}}' >/dev/null
chart='' release rollback 4
mode=$(kubectl -n gybe-system get configmap gybe-config -o jsonpath='{.data.mode}')
[ "$mode" = install ] || { echo "mode: $mode" >&2 && exit 1; }
kept=$(names)
[ "$kept" = "$all" ] || { echo "$kept" && exit 1; }
echo "kept after a Job that failed, and rolled back"
chart='' release uninstall --no-hooks
left=$(names)
[ -z "$left" ] || { echo "$left" && exit 1; }

# Changes of a pod's status with tokens of the agent's service account, which the policies allow or refuse.
pod() {
    cat <<YAML
---
apiVersion: v1
kind: Pod
metadata: { name: $1, namespace: $2, labels: { a: b }, annotations: { $3 } }
spec: { nodeName: $1, serviceAccountName: $4, automountServiceAccountToken: false, containers: [{ name: a, image: a }] }
YAML
}
# request allowed|refused TOKEN POD METADATA [STATUS]
request() {
    response=$(kubectl --token="$2" patch pod "$3" --subresource=status --type=merge --dry-run=server \
        --patch "{\"metadata\":{$4},\"status\":{${5:-}}}" 2>&1) && outcome=allowed || outcome=$response
    case $outcome in
    *"ValidatingAdmissionPolicy 'gybe-"*) outcome=refused ;;
    esac
    [ "$outcome" = "$1" ] || { echo "$3 $4 ${5:-}: not $1: $outcome" >&2 && return 1; }
}
# A policy and a role apply, and no longer apply, with a delay.
is() { request "$@" 2>/dev/null; }
for node in here elsewhere; do
    kubectl create -f - >/dev/null <<YAML
{ apiVersion: v1, kind: Node, metadata: { name: $node } }
YAML
done
kubectl create serviceaccount default >/dev/null
# kubectl reads what it patches.
kubectl create clusterrole reader --verb=get --resource=pods,pods/status >/dev/null
kubectl create clusterrolebinding reader --clusterrole=reader --serviceaccount=gybe-system:gybe-node >/dev/null
annotation='"ambient.istio.io/redirection"' label='"cni.istio.io/uninitialized"'
for settings in ambient.enabled=true settings.repair=label ambient.enabled=true,settings.repair=label; do
    chart=manifests/chart release install --set "$settings"
    {
        pod here default "c: d" default
        pod elsewhere default "c: d, $annotation: enabled" default
        pod here gybe-system "c: d" gybe-node
        pod elsewhere gybe-system "c: d" gybe-node
    } | kubectl create -f - >/dev/null
    here=$(kubectl -n gybe-system create token gybe-node --bound-object-kind Pod --bound-object-name here)
    elsewhere=$(kubectl -n gybe-system create token gybe-node --bound-object-kind Pod --bound-object-name elsewhere)
    of_no_pod=$(kubectl -n gybe-system create token gybe-node)
    enabled="\"annotations\":{$annotation:\"enabled\"}" broken="\"labels\":{$label:\"true\"}"
    case $settings in *ambient*) annotated=allowed ;; *) annotated=refused ;; esac
    case $settings in *label) labelled=allowed ;; *) labelled=refused ;; esac
    until_at_most 60 is refused "$here" here '"annotations":{"x":"y"}'
    until_at_most 60 is refused "$here" here '"labels":{"x":"y"}'
    until_at_most 60 is $annotated "$here" here "$enabled"
    until_at_most 60 is $annotated "$elsewhere" elsewhere "\"annotations\":{$annotation:null}"
    until_at_most 60 is $labelled "$here" here "$broken"
    for change in "$enabled" "$broken"; do
        request refused "$here" elsewhere "$change"
        request refused "$of_no_pod" here "$change"
    done
    for other in "$annotation:\"pending\"" '"c":"e"' '"c":null' "$annotation:\"enabled\",\"c\":null"; do
        request refused "$here" here "\"annotations\":{$other}"
    done
    request refused "$here" here '"labels":{"a":null}'
    request refused "$here" here '"finalizers":["example.com/x"]'
    request refused "$here" here "" '"message":"x"'
    for namespace in default gybe-system; do
        kubectl -n "$namespace" delete pod here elsewhere --force --grace-period=0 >/dev/null 2>&1
    done
    chart='' release uninstall --no-hooks
    echo "requests are as expected with $settings"
done
echo "$apiserver: installed, upgraded, rolled back and deleted: $(echo "$all" | wc -l) objects in the namespace"
