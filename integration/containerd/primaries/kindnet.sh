#!/bin/sh
# kindnet of kind: kindnetd writes its conf file once, when it starts: a temporary name in the same directory, renamed.
# Without the program its write is simulated, after images/kindnetd/cmd/kindnetd/cni.go of kind v0.33.0.
set -eu
file=/etc/cni/net.d/10-kindnet.conflist
if [ -x "$PROGRAMS/kindnetd" ]; then
    HOST_IP=192.0.2.1 POD_IP=192.0.2.1 POD_SUBNET=10.244.0.0/16 exec "$PROGRAMS/kindnetd"
fi
cat >"$file.temp" <<'JSON'

{
	"cniVersion": "0.3.1",
	"name": "kindnet",
	"plugins": [
	{
		"type": "ptp",
		"ipMasq": false,
		"ipam": {
			"type": "host-local",
			"dataDir": "/run/cni-ipam-state",
			"routes": [ { "dst": "0.0.0.0/0" } ],
			"ranges": [ [ { "subnet": "10.244.0.0/24" } ] ]
		},
		"mtu": 1500
	},
	{
		"type": "portmap",
		"capabilities": { "portMappings": true }
	}
	]
}
JSON
mv "$file.temp" "$file"
exec sleep infinity
