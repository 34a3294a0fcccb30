# shellcheck shell=sh
# Sourced by scripts in a network namespace of their own: etcd and an API server at https://127.0.0.1:6443. $programs is the
# directory of etcd, kube-apiserver and kubectl, and $data an empty directory for files and logs.

export KUBECONFIG="$data/kubeconfig"
kubectl() { "$programs/kubectl" --request-timeout=60s "$@"; }

# start_api_server PROGRAM [ARGUMENT...]: starts etcd and this API server, and waits until the API server is ready. The
# token of kubectl's user is `admin`; further lines of $data/tokens.csv add users. The certificate is $data/server.crt.
start_api_server() {
    ip link set lo up
    openssl genrsa -out "$data/accounts.key" 2048 2>/dev/null
    openssl req -x509 -newkey rsa:2048 -nodes -keyout "$data/server.key" -out "$data/server.crt" -days 1 \
        -subj /CN=kubernetes -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE 2>/dev/null
    echo "admin,admin,admin,system:masters" >>"$data/tokens.csv"
    program=$1
    shift
    "$programs/etcd" --data-dir="$data/etcd" --unsafe-no-fsync >"$data/etcd.log" 2>&1 &
    "$programs/$program" --etcd-servers=http://127.0.0.1:2379 --secure-port=6443 --bind-address=127.0.0.1 \
        --advertise-address=192.0.2.1 --tls-cert-file="$data/server.crt" --tls-private-key-file="$data/server.key" \
        --token-auth-file="$data/tokens.csv" --authorization-mode=RBAC --allow-privileged=true \
        --service-cluster-ip-range=10.96.0.0/16 --service-account-issuer=https://kubernetes.default.svc \
        --service-account-key-file="$data/accounts.key" --service-account-signing-key-file="$data/accounts.key" "$@" \
        >"$data/apiserver.log" 2>&1 &
    cat >"$KUBECONFIG" <<YAML
apiVersion: v1
kind: Config
clusters: [{ name: c, cluster: { server: "https://127.0.0.1:6443", certificate-authority: "$data/server.crt" } }]
users: [{ name: u, user: { token: admin } }]
contexts: [{ name: x, context: { cluster: c, user: u } }]
current-context: x
YAML
    until_at_most 300 is_serving
}
is_serving() { kubectl get --raw /readyz >/dev/null 2>&1; }

# until_at_most SECONDS COMMAND...: repeats the command until it succeeds.
until_at_most() {
    deadline=$(($(date +%s) + $1))
    shift
    until "$@"; do
        if [ "$(date +%s)" -ge "$deadline" ]; then
            echo "not in time: $*" >&2
            tail -n 20 "$data/apiserver.log" "$data/etcd.log" >&2
            exit 1
        fi
        sleep 0.2
    done
}
