// The program that runs ocicni for tests, with libcni 1.3. libcni-1.2.mod builds it with libcni 1.2, which reads no
// drop-ins. No code of Gybe's imports ocicni.
module gybe/integration/ocicni

go 1.24.2

require (
	github.com/containernetworking/cni v1.3.0
	github.com/cri-o/ocicni v0.5.0
)

require (
	github.com/containernetworking/plugins v1.8.0 // indirect
	github.com/fsnotify/fsnotify v1.9.0 // indirect
	github.com/sirupsen/logrus v1.9.3 // indirect
	github.com/vishvananda/netlink v1.3.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	golang.org/x/sys v0.35.0 // indirect
)
