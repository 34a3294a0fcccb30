#!/bin/sh
# left.sh [SECONDS]: waits, 300 seconds if nothing is said, until every agent has taken its node out of
# the chain, as `mode: leave` has it do; names the nodes that have not, and fails.
set -eu

deadline=$(($(date +%s) + ${1:-300}))

agents() {
    kubectl -n gybe-system get pods -l app.kubernetes.io/name=gybe-node \
        -o jsonpath='{range .items[*]}{.metadata.name} {.spec.nodeName}{"\n"}{end}'
}

# On how many nodes there is to be one: while a pod is replaced its node has none.
nodes() {
    kubectl -n gybe-system get daemonset gybe-node -o jsonpath='{.status.desiredNumberScheduled}'
}

# 200 says that its node is out; anything else is an error to kubectl.
has_left() {
    kubectl get --request-timeout=5s --raw "/api/v1/namespaces/gybe-system/pods/$1:8000/proxy/left" \
        >/dev/null 2>&1 </dev/null
}

while :; do
    all=$(agents)
    wanted=$(nodes)
    if [ -z "$all" ]; then
        echo "there is no agent to ask: on each node, gybe uninstall takes it out" >&2
        exit 1
    fi
    waiting=$(echo "$all" | while read -r pod node; do has_left "$pod" || echo "${node:-no node yet} ($pod)"; done)
    asked=$(echo "$all" | while read -r _ node; do echo "$node"; done | sort -u | { grep -c . || true; })
    if [ "$asked" -lt "$wanted" ]; then
        waiting="${waiting:+$waiting
}those without an agent: $asked of $wanted nodes have one"
    fi
    if [ -z "$waiting" ]; then
        echo "every node has left"
        exit 0
    fi
    if [ "$(date +%s)" -ge "$deadline" ]; then
        printf 'these have not left:\n%s\n' "$waiting" >&2
        exit 1
    fi
    sleep 5
done
