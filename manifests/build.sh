#!/bin/sh
# build.sh [--write]: renders the chart, and builds the overlays and components with kustomize.
#
# The files of the base, and those of the overlays and components that are no patches, are rendered from the chart:
# --write writes them, and without it they must be equal.
# target/manifests/PLATFORM.yaml       the overlay
# target/manifests/with-COMPONENT.yaml the default overlay with a component
# target/manifests/chart/NAME.yaml     the chart for a platform, with a component, or with the values of chart-values/NAME
#
# Also lints the chart, and runs the unit tests of its alerts.
#
# Uses kubectl's kustomize if its version is 5 or later; manifests/tool.sh finds or builds the other programs.
set -eu
cd "$(dirname "$0")/.."
# shellcheck source=integration/setup-lock.sh
. integration/setup-lock.sh

out=target/manifests
if kubectl version --client 2>/dev/null | grep -Eq "^Kustomize Version: v([5-9]|[1-9][0-9]+)\."; then
    build() { kubectl kustomize "$1"; }
else
    kustomize=$(manifests/tool.sh kustomize)
    build() { "$kustomize" build "$1"; }
fi
helm=$(manifests/tool.sh helm)
promtool=$(manifests/tool.sh promtool)

# render_all ARGUMENT...: prints the chart's objects, with those of hooks.
render_all() {
    "$helm" template gybe manifests/chart --namespace gybe-system --kube-version 1.30.0 "$@"
}
render() {
    render_all --no-hooks "$@"
}
# refused NAME TEXT ARGUMENT...: the chart does not accept the values, for this reason.
refused() {
    name=$1 text=$2
    shift 2
    if render_all "$@" >"$out/chart/$name" 2>&1; then
        echo "the chart accepts: $*" >&2
        exit 1
    fi
    grep -qF "$text" "$out/chart/$name" || { cat "$out/chart/$name" >&2 && exit 1; }
}

# rendered FILE TEMPLATE ARGUMENT...: the file is what the template renders.
differs=""
rendered() {
    file=manifests/$1 template=$2 new=$out/rendered
    shift 2
    {
        echo "# Rendered from manifests/chart/templates/$template by manifests/build.sh --write."
        render --show-only "templates/$template" "$@" | sed -e '1{/^---$/d}' -e '/^# Source: /d'
    } >"$new"
    if [ "$write" = 1 ]; then
        cp "$new" "$file"
    else
        diff -u "$file" "$new" || differs="$differs $file"
    fi
    rm "$new"
}

write=0
[ "${1:-}" != --write ] || write=1
rm -rf "$out"
mkdir -p "$out/chart"

for name in serviceaccount rbac configmap daemonset; do
    rendered "base/$name.yaml" "$name.yaml"
done
for object in rbac policy; do
    rendered "components/node-condition/$object.yaml" "node-condition-$object.yaml" --set nodeCondition=true
done
rendered components/node-taint/rbac.yaml node-taint-rbac.yaml --set nodeTaints={key}
rendered components/node-taint/policy.yaml node-taint-policy.yaml --set nodeTaints={key}
critical='criticalDaemonSets[0].name=gybe-node,criticalDaemonSets[0].namespace=gybe-system'
critical="$critical,criticalDaemonSets[0].selector=app.kubernetes.io/name\=gybe-node"
for object in rbac configmap; do
    rendered "components/istio-cni-taint/$object.yaml" "istio-cni-taint-$object.yaml" --set "$critical"
done
for mode in delete label; do
    for object in rbac policy; do
        rendered "components/repair-$mode/$object.yaml" "repair-$mode-$object.yaml" --set "settings.repair=$mode"
    done
done
for object in rbac policy; do
    rendered "components/ambient-annotation/$object.yaml" "ambient-annotation-$object.yaml" --set ambient.enabled=true
done
rendered overlays/gke/resourcequota.yaml resourcequota.yaml --set platform=gke
rendered overlays/openshift/networkattachmentdefinition.yaml networkattachmentdefinition.yaml --set platform=openshift
rendered overlays/openshift/scc.yaml scc.yaml --set platform=openshift
if [ -n "$differs" ]; then
    echo "not as the chart renders them:$differs; run: manifests/build.sh --write" >&2
    exit 1
fi

for overlay in manifests/overlays/*/; do
    platform=$(basename "$overlay")
    build "$overlay" >"$out/$platform.yaml"
done
for component in manifests/components/*/; do
    name=$(basename "$component")
    mkdir -p "target/components/$name"
    # The same as an operator's overlay.
    cat >"target/components/$name/kustomization.yaml" <<YAML
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../../../manifests/overlays/default]
components: [../../../$component]
YAML
    build "target/components/$name" >"$out/with-$name.yaml"
done

sed -n 's|^icon: data:image/svg+xml;base64,||p' manifests/chart/Chart.yaml | base64 --decode | cmp - docs/img/icon.svg
"$helm" lint --quiet --strict --kube-version 1.30.0 manifests/chart
"$promtool" test rules manifests/alerts-test.yaml
for platform in $(sed -n 's/^\([a-z0-9]*\):.*/\1/p' manifests/chart/files/platforms.yaml); do
    render --set "platform=$platform" >"$out/chart/$platform.yaml"
done
render --set foreignOwner=true >"$out/chart/with-foreign-owner.yaml"
render --set probeOnce=true --set settings.repair=off >"$out/chart/with-probe-once.yaml"
render --set seLinuxOptions.type=spc_t >"$out/chart/with-selinux.yaml"
render --set nodeTaints={cni.istio.io/not-ready} >"$out/chart/with-node-taint.yaml"
render --set nodeCondition=true >"$out/chart/with-node-condition.yaml"
render --set "$critical" >"$out/chart/with-istio-cni-taint.yaml"
render --set settings.repair=delete >"$out/chart/with-repair-delete.yaml"
render --set settings.repair=label >"$out/chart/with-repair-label.yaml"
render --set ambient.enabled=true >"$out/chart/ambient.yaml"
render --set ambient.enabled=true,settings.repair=label >"$out/chart/ambient-label.yaml"
render -f manifests/chart-values/pools.yaml >"$out/chart/pools.yaml"
leave() {
    render_all --set leave.enabled=true --show-only templates/leave.yaml "$@"
}
leave -f manifests/chart-values/pools.yaml >"$out/chart/leave.yaml"
leave --set platform=openshift >"$out/chart/leave-openshift.yaml"
# `kubectl apply` would run the Job at once.
render_all >"$out/chart/applied"
if grep -n gybe-leave "$out/chart/applied"; then
    echo "helm template renders the Job that leaves every node" >&2
    exit 1
fi
render -f manifests/chart-values/all.yaml >"$out/chart/all.yaml"
render_all -f manifests/chart-values/renamed.yaml --set leave.enabled=true >"$out/chart/renamed.yaml"
render_all -f manifests/chart-values/own-rights.yaml --set leave.enabled=true >"$out/chart/own-rights.yaml"
# notes NAME ARGUMENT...: what helm prints after the installation, which only a cluster makes it print.
rm -rf target/notes
mkdir -p target/notes
cp -R manifests/chart target/notes/
echo 'notes: {{ include (print .Template.BasePath "/NOTES.txt") . | toJson }}' >target/notes/chart/templates/notes.yaml
notes() {
    name=$1
    shift
    "$helm" template gybe target/notes/chart --namespace gybe-system --kube-version 1.30.0 --show-only templates/notes.yaml "$@" \
        >"target/notes/$name.yaml"
}
notes default
notes istio-cni -f manifests/chart-values/istio-cni.yaml
notes pools -f manifests/chart-values/pools.yaml --set fullnameOverride=mesh
render --set serviceMonitor.enabled=true >"$out/chart/servicemonitor.yaml"
render -f manifests/chart-values/istio-cni.yaml >"$out/chart/istio-cni.yaml"
render -f manifests/chart-values/istio-cni-label.yaml >"$out/chart/istio-cni-label.yaml"
render -f manifests/chart-values/istio-cni-older.yaml >"$out/chart/istio-cni-older.yaml"
render -f manifests/chart-values/global.yaml >"$out/chart/global.yaml"
# What `gybe migrate values` prints for these files, which a test of the program compares.
for name in istio-cni istio-cni-label istio-cni-older global; do
    render -f "manifests/chart-values/translated/$name.yaml" | diff "$out/chart/$name.yaml" - >&2 || exit 1
done
refused refused 'values that cannot be applied' -f manifests/chart-values/refused.yaml
refused probe-once 'probeOnce: set settings.repair to off' --set probeOnce=true
refused repair-key "additional properties 'repairPod' not allowed" --set repair.repairPod=false
refused leave-port 'the Job that leaves needs health.port' --set health.port=0
refused leave-address 'it cannot query the agents at 127.0.0.1' --set health.address=127.0.0.1
refused taint-twice 'NodeReadiness is in nodeTaints' --set "$critical" --set nodeTaints={NodeReadiness}
refused monitors 'would scrape each agent twice' --set podMonitor.enabled=true,serviceMonitor.enabled=true
refused servicemonitor-port 'serviceMonitor.enabled needs metrics.port' --set serviceMonitor.enabled=true,metrics.port=0
refused podmonitor-port 'podMonitor.enabled needs metrics.port' --set podMonitor.enabled=true,metrics.port=0
# A value of the wrong type, or a misspelled one: the error names it.
refused affinity-type "'/affinity/nodeAffinity': got array, want object" --set-json 'affinity.nodeAffinity=[]'
refused affinity-key "additional properties 'nodeAfinity' not allowed" --set-json 'affinity.nodeAfinity={}'
refused affinity-pool "'/pools/edge/affinity': got string, want object" --set pools.edge.affinity=zone
refused grace "'/terminationGracePeriodSeconds': got string" --set-string terminationGracePeriodSeconds=1m
refused probe "'/livenessProbe/periodSeconds': got string, want integer" --set-string livenessProbe.periodSeconds=5s
refused probe-command "additional properties 'exec' not allowed" --set readinessProbe.exec.command={true}
refused surge "'/updateStrategy/rollingUpdate/maxSurge'" --set updateStrategy.rollingUpdate.maxSurge=some
refused strategy "'/updateStrategy': got string, want object" --set updateStrategy=OnDelete
refused env "'/env/TOKEN': missing property 'valueFrom'" --set-json 'env.TOKEN={}'
refused env-source "additional properties 'secretRef' not allowed" --set env.TOKEN.valueFrom.secretRef.name=token
refused volume "'/extraVolumes/0': missing property 'name'" --set-json 'extraVolumes=[{"emptyDir":{}}]'
refused name "'/fullnameOverride'" --set fullnameOverride=Mesh_1
refused long-name 'longer than 36 characters; set fullnameOverride' --set nameOverride=a-name-of-more-than-32-characters-1
refused account 'serviceAccount.name: name the account' --set serviceAccount.create=false
refused nested "'/cni/extraVolumes': got string, want array" --set cni.extraVolumes=data
