#!/bin/sh
# left.sh [SECONDS]: waits (default: 300 seconds) until every agent has removed Gybe's entry from its node after
# `mode: leave`, and prints for each node which programs stay there, and why. Otherwise names the other nodes and
# fails.
set -eu

deadline=$(($(date +%s) + ${1:-300}))

agents() {
    kubectl -n gybe-system get pods -l app.kubernetes.io/name=gybe-node \
        -o jsonpath='{range .items[*]}{.metadata.name} {.spec.nodeName}{"\n"}{end}'
}

# The number of nodes that should have an agent: while a pod is replaced, its node has none.
desired_nodes() {
    kubectl -n gybe-system get daemonset gybe-node -o jsonpath='{.status.desiredNumberScheduled}'
}

# Prints the agent's report. 200 means that it has removed the entry; kubectl fails at any other status.
left() {
    kubectl get --request-timeout=5s --raw "/api/v1/namespaces/gybe-system/pods/$1:8000/proxy/left" 2>/dev/null </dev/null
}

while :; do
    all=$(agents)
    desired=$(desired_nodes)
    if [ -z "$all" ]; then
        echo "no agent runs; run gybe uninstall on each node" >&2
        exit 1
    fi
    waiting=$(echo "$all" | while read -r pod node; do left "$pod" >/dev/null || echo "${node:-no node yet} ($pod)"; done)
    with_agent=$(echo "$all" | while read -r _ node; do echo "$node"; done | sort -u | { grep -c . || true; })
    if [ "$with_agent" -lt "$desired" ]; then
        waiting="${waiting:+$waiting
}nodes without an agent: $with_agent of $desired nodes have one"
    fi
    if [ -z "$waiting" ]; then
        echo "$all" | while read -r pod node; do echo "$node: $(left "$pod" || echo "the agent has just ended")"; done
        echo "no conf file names gybe-cni on any node; agents that end remove the programs that no sandbox needs"
        exit 0
    fi
    if [ "$(date +%s)" -ge "$deadline" ]; then
        printf 'Gybe is not removed from these nodes:\n%s\n' "$waiting" >&2
        exit 1
    fi
    sleep 5
done
