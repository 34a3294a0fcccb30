//! The faults.

use crate::fixture::AgentState::{Absent, Running};
use crate::fixture::{Expected, Fault, Part};
use gybe_integration::programs::path_of_ours;
use gybe_test_support::wait_until;
use nix::mount::MsFlags;
use nix::sys::socket::{Shutdown, shutdown};
use serde_json::json;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;

/// The alert for a node on which a pod that starts now is not redirected.
pub(crate) const NOT_READY: &str = "GybeNodeNotReady";

pub(crate) const fn wrong(
    about: &'static str,
    id: &'static str,
    says: &'static str,
    remedy: &'static str,
) -> Expected {
    Expected { state: "wrong", about, id, says, remedy }
}

const fn note(about: &'static str, says: &'static str, remedy: &'static str) -> Expected {
    Expected { state: "note", about, id: "", says, remedy }
}

/// What a broken first conf file causes.
const NO_NETWORK: &str = "containerd loads no network because";

/// Returns the first page of the real plugin, changed by `change`.
fn beginning_of_plugin(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut program = fs::read(path_of_ours("gybe-cni").unwrap()).unwrap();
    program.truncate(4096);
    change(&mut program);
    program
}

pub(crate) const FAULTS: &[Fault] = &[
    Fault {
        name: "the agent is dead",
        agent: Some(Running),
        parts: &[Part::Agent],
        plant: |node| drop(node.agent.take()),
        doctor: &[wrong(
            "agent",
            "GYBE-032",
            "is gone, so the plugin refuses new pods",
            "DaemonSet gybe-node runs",
        )],
        verify: None,
    },
    Fault {
        name: "the agent is dead and its socket is gone",
        agent: Some(Running),
        parts: &[Part::Agent],
        plant: |node| {
            drop(node.agent.take());
            fs::remove_file(node.path("run/gybe/facts.sock")).unwrap();
        },
        doctor: &[wrong(
            "agent",
            "GYBE-032",
            "is not there, so the plugin refuses",
            "DaemonSet gybe-node runs",
        )],
        verify: None,
    },
    Fault {
        name: "the agent is dead and the entry is gone",
        agent: Some(Running),
        parts: &[Part::Agent, Part::Conf],
        plant: |node| {
            drop(node.agent.take());
            node.put_primary();
        },
        doctor: &[
            wrong(
                "agent",
                "GYBE-032",
                "is gone, and no conf file names gybe-cni",
                "DaemonSet gybe-node runs",
            ),
            wrong("chain", NOT_READY, "gybe-cni is not in 10-pods.conflist", "start the agent"),
        ],
        verify: None,
    },
    Fault {
        name: "the ConfigMap is refused",
        agent: Some(Running),
        parts: &[Part::Agent],
        plant: |node| {
            node.set_configmap("log_level", "loud");
            wait_until("its count", || node.agent().metric("gybe_settings_followed") == 0.0);
        },
        doctor: &[wrong(
            "agent",
            "GybeSettingsRefused",
            "log_level is \"loud\"",
            "correct the ConfigMap gybe-config",
        )],
        verify: None,
    },
    Fault {
        name: "another program keeps rewriting the conf file",
        agent: Some(Running),
        parts: &[Part::Agent, Part::Conf, Part::ConfDirectory],
        plant: |node| {
            wait_until("a conflict", || {
                node.put_primary();
                node.agent().metric("gybe_conflict{what=\"conf\"}") == 1.0
            });
        },
        doctor: &[
            wrong("agent", "GybeConflict", "another program keeps undoing", "stop the other writer"),
            wrong("agent", NOT_READY, "another program has undone the entry again", "docs/AGENT.md"),
        ],
        verify: None,
    },
    Fault {
        name: "the agent's token has expired",
        agent: Some(Running),
        parts: &[Part::Agent],
        plant: |node| {
            node.expire_tokens();
            wait_until("a refused watch", || node.agent().get("/readyz").1.contains("401"));
        },
        doctor: &[wrong("agent", "GybePodsUnknown", "401", "API server")],
        verify: None,
    },
    Fault {
        name: "the primary rewrote the conf file",
        agent: Some(Absent),
        parts: &[Part::Conf],
        plant: |node| node.put_primary(),
        doctor: &[wrong("chain", NOT_READY, "gybe-cni is not in 10-pods.conflist", "run gybe install")],
        verify: None,
    },
    Fault {
        name: "the conf file is truncated",
        agent: Some(Absent),
        parts: &[Part::Conf],
        plant: |node| {
            let conf = node.conf();
            node.put_conf(&conf[..conf.len() / 2]);
        },
        doctor: &[wrong("chain", NOT_READY, NO_NETWORK, "let its owner write it again")],
        verify: None,
    },
    Fault {
        name: "the conf file is empty",
        agent: Some(Absent),
        parts: &[Part::Conf],
        plant: |node| node.put_conf(""),
        doctor: &[wrong("chain", NOT_READY, NO_NETWORK, "let its owner write it again")],
        verify: None,
    },
    Fault {
        name: "the conf file is gone",
        agent: Some(Absent),
        parts: &[Part::Conf],
        plant: |node| fs::remove_file(node.path("etc/cni/net.d/10-pods.conflist")).unwrap(),
        doctor: &[wrong("chain", NOT_READY, "the runtime has no network", "DaemonSet of the primary plugin")],
        verify: None,
    },
    Fault {
        name: "another list sorts first",
        agent: Some(Absent),
        parts: &[Part::Conf],
        plant: |node| {
            node.write("etc/cni/net.d/05-new.conflist", &node.conf().replace("gybe-cni", "bridge"));
        },
        doctor: &[wrong(
            "chain",
            NOT_READY,
            "gybe-cni is in 10-pods.conflist, but the runtime uses 05-new",
            "run gybe install",
        )],
        verify: None,
    },
    Fault {
        name: "a dangling link sorts first",
        agent: Some(Absent),
        parts: &[Part::Conf],
        plant: |node| symlink("/nowhere", node.path("etc/cni/net.d/05-new.conflist")).unwrap(),
        doctor: &[wrong("chain", NOT_READY, "05-new.conflist cannot be read here", "it is a symbolic link")],
        verify: None,
    },
    Fault {
        name: "a value of the entry is invalid",
        agent: Some(Absent),
        parts: &[Part::Conf],
        plant: |node| node.change_conf("\"backend\":\"auto\"", "\"backend\":\"nftt\""),
        doctor: &[wrong("entry", "GYBE-009", "backend is \"nftt\"", "gybe install writes the entry again")],
        verify: None,
    },
    Fault {
        name: "the entry does not request annotations",
        agent: Some(Absent),
        parts: &[Part::Conf],
        plant: |node| node.change_conf("io.kubernetes.cri.pod-annotations", "portMappings"),
        doctor: &[wrong("entry", "", "does not request the capability", "run gybe install")],
        verify: None,
    },
    Fault {
        name: "the kubeconfig of the entry is gone",
        agent: Some(Absent),
        parts: &[Part::Conf],
        plant: |node| node.change_conf("\"kubeconfig\":\"\"", "\"kubeconfig\":\"/nowhere/kubeconfig\""),
        doctor: &[wrong(
            "entry",
            "GYBE-033",
            "the kubeconfig /nowhere/kubeconfig cannot be read",
            "remove the path",
        )],
        verify: None,
    },
    Fault {
        name: "istio-cni is in the chain, too",
        agent: Some(Absent),
        parts: &[Part::Conf],
        plant: |node| {
            node.node.root.write_programs("opt/cni/bin", ["istio-cni"]);
            node.change_conf("\"bridge\": \"cni0\"", "\"bridge\": \"cni0\" }, { \"type\": \"istio-cni\"");
        },
        doctor: &[wrong("others", NOT_READY, "has entries of istio-cni and gybe-cni", "--take-over now")],
        verify: None,
    },
    Fault {
        name: "istio-cni serves ambient mode",
        agent: Some(Absent),
        parts: &[Part::Conf],
        plant: |node| {
            node.node.root.write_programs("opt/cni/bin", ["istio-cni"]);
            let istio = "\"bridge\": \"cni0\" }, { \"type\": \"istio-cni\", \"ambient_enabled\": true";
            node.change_conf("\"bridge\": \"cni0\"", istio);
        },
        doctor: &[wrong("others", NOT_READY, "serves ambient mode", "exclude this node from Gybe")],
        verify: None,
    },
    Fault {
        name: "the plugin is truncated",
        agent: Some(Absent),
        parts: &[Part::Plugin],
        plant: |node| node.put_plugin(&beginning_of_plugin(|_| ()), 0o755),
        doctor: &[wrong("programs", NOT_READY, "gybe-cni does not run", "run gybe install")],
        verify: None,
    },
    Fault {
        name: "the plugin is empty",
        agent: Some(Absent),
        parts: &[Part::Plugin],
        plant: |node| node.put_plugin(b"", 0o755),
        doctor: &[wrong("programs", NOT_READY, "gybe-cni does not run", "run gybe install")],
        verify: None,
    },
    Fault {
        name: "the plugin is for another architecture",
        agent: Some(Absent),
        parts: &[Part::Plugin],
        // e_machine of elf(5): SPARC.
        plant: |node| {
            node.put_plugin(&beginning_of_plugin(|program| program[18..20].copy_from_slice(&[2, 0])), 0o755);
        },
        doctor: &[wrong("programs", NOT_READY, "for another architecture", "run gybe install")],
        verify: None,
    },
    Fault {
        name: "the plugin has mode 0644",
        agent: Some(Absent),
        parts: &[Part::Plugin],
        plant: |node| {
            node.set_mode("opt/cni/bin/gybe-cni", 0o644);
        },
        doctor: &[wrong("programs", NOT_READY, "gybe-cni is not executable: mode 0644", "run gybe install")],
        verify: None,
    },
    Fault {
        name: "every user may write the plugin",
        agent: Some(Absent),
        parts: &[Part::Plugin],
        plant: |node| {
            node.set_mode("opt/cni/bin/gybe-cni", 0o777);
        },
        doctor: &[wrong("programs", "", "gybe-cni is writable by other users: mode 0777", "can become root")],
        verify: None,
    },
    Fault {
        name: "the plugin is missing",
        agent: Some(Absent),
        parts: &[Part::Plugin],
        plant: |node| fs::remove_file(node.path("opt/cni/bin/gybe-cni")).unwrap(),
        doctor: &[wrong("programs", NOT_READY, "the program gybe-cni is missing", "run gybe install")],
        verify: None,
    },
    Fault {
        name: "no backend works",
        agent: Some(Absent),
        parts: &[Part::ProbeReport],
        plant: |node| {
            for backend in ["nft", "iptables-nft", "iptables-legacy"] {
                node.set_finding(backend, &json!({ "finding": "misbehaves", "what": "no answer" }));
            }
        },
        doctor: &[wrong(
            "backend",
            "GYBE-027",
            "the plugin refuses every pod of the mesh",
            "gybe probe --fresh",
        )],
        verify: None,
    },
    Fault {
        name: "a backend is forced that does not work",
        agent: Some(Absent),
        parts: &[Part::ProbeReport, Part::Conf],
        plant: |node| {
            node.set_finding("iptables-legacy", &json!({ "finding": "misbehaves", "what": "no answer" }));
            node.change_conf("\"backend\":\"auto\"", "\"backend\":\"iptables-legacy\"");
        },
        doctor: &[wrong(
            "backend",
            "GYBE-027",
            "backend: iptables-legacy, and the plugin refuses",
            "set backend to",
        )],
        verify: None,
    },
    Fault {
        name: "a backend is configured whose programs are missing",
        agent: Some(Absent),
        parts: &[Part::Conf],
        plant: |node| node.change_conf("\"backend\":\"auto\"", "\"backend\":\"iptables-nft\""),
        doctor: &[wrong(
            "backend",
            "GYBE-015",
            "iptables-nft can no longer write rules",
            "install iptables-nft's programs",
        )],
        verify: None,
    },
    Fault {
        name: "the pod's rules were deleted",
        agent: None,
        parts: &[Part::Rules],
        plant: |node| node.in_pod("nft delete table inet gybe"),
        doctor: &[wrong(
            "pods",
            "GybePodsNotRedirected",
            "shop/cart-1: NOT REDIRECTED: no Gybe rules",
            "gybe verify --pod shop/cart-1",
        )],
        verify: Some(("not-redirected", "no Gybe rules in this namespace")),
    },
    Fault {
        name: "another owner's NAT comes first in the pod",
        agent: None,
        parts: &[Part::Rules],
        plant: |node| {
            let script = "table ip other { chain output { type nat hook output priority -150; tcp dport 80 dnat to 192.0.2.1; }; }";
            node.in_pod(&format!("nft '{script}'"));
        },
        doctor: &[wrong(
            "pods",
            "GybePodsNotRedirected",
            "shop/cart-1: NOT REDIRECTED",
            "gybe verify --pod shop/cart-1",
        )],
        verify: Some(("not-redirected", "ip other output: tcp dport 80 dnat")),
    },
    Fault {
        name: "IPv6 was switched off in the pod",
        agent: None,
        parts: &[Part::Rules],
        plant: |node| node.in_pod("echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6"),
        doctor: &[wrong(
            "pods",
            "GybePodsNotRedirected",
            "shop/cart-1: redirected: IPv6 is off",
            "where rules differ, delete the pod",
        )],
        verify: None,
    },
    Fault {
        name: "IPv6 is off in the pod, and a rule is missing",
        agent: None,
        parts: &[Part::Rules],
        plant: |node| {
            node.in_pod(
                "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; nft flush chain inet gybe nat-prerouting",
            );
        },
        doctor: &[wrong(
            "pods",
            "GybePodsNotRedirected",
            "shop/cart-1: NOT REDIRECTED: TCP",
            "gybe verify --pod shop/cart-1",
        )],
        verify: Some(("not-redirected", "in chain nat-prerouting is missing")),
    },
    Fault {
        name: "the pod got an IPv6 address after its rules were written",
        agent: None,
        parts: &[Part::Rules],
        plant: |node| {
            node.in_pod("ip address del fd00:10::10/64 dev eth0");
            node.apply();
            node.in_pod("ip address add fd00:10::10/64 dev eth0 nodad");
        },
        doctor: &[wrong(
            "pods",
            "GybePodsNotRedirected",
            "shop/cart-1: NOT REDIRECTED: the rules are those of a policy for IPv4 alone",
            "where rules differ, delete the pod",
        )],
        verify: Some(("not-redirected", "\"differences\":[\"the rules and routes for IPv6 are missing\"]")),
    },
    Fault {
        name: "the pod's policy captures no inbound connection",
        agent: Some(Absent),
        parts: &[Part::Rules, Part::Proxy, Part::Annotations],
        plant: |node| {
            node.node.manifest("shop", &node.pod, |pod| {
                pod["metadata"]["annotations"]["traffic.sidecar.istio.io/includeInboundPorts"] = json!("");
            });
            node.annotate(&json!({ "sidecar.istio.io/status": "{}" }));
            node.apply();
        },
        doctor: &[],
        verify: Some((
            "redirected",
            "its policy captures no inbound connection: gybe explain names what sets that",
        )),
    },
    Fault {
        name: "libcni's cached results were deleted",
        agent: Some(Absent),
        parts: &[Part::Rules, Part::Proxy, Part::Annotations],
        plant: |node| fs::remove_dir_all(node.path("var/lib/cni/results")).unwrap(),
        doctor: &[note(
            "pods",
            "libcni has no cached result of the ADDs of these running pods: shop/cart-1",
            "delete these pods",
        )],
        verify: None,
    },
    Fault {
        name: "the proxy does not listen",
        agent: None,
        parts: &[Part::Proxy],
        plant: |node| {
            for listener in node.proxy.drain(..) {
                // A child of another test may have a copy until its execve(2).
                shutdown(listener.as_raw_fd(), Shutdown::Read).unwrap();
            }
        },
        doctor: &[note("pods", "pod shop/cart-1: no process listens on 15001 and 15006", "istio-proxy")],
        verify: Some(("", "\"proxy_silent_on\":[15001,15006]")),
    },
    Fault {
        name: "DNS is captured, and the resolver does not listen for datagrams",
        agent: Some(Absent),
        parts: &[Part::Proxy, Part::Rules, Part::Annotations],
        plant: |node| {
            node.capture_dns();
            let resolver = node.pod.netns.run(|| TcpListener::bind("127.0.0.1:15053").unwrap()).unwrap();
            node.proxy.push(resolver);
        },
        doctor: &[note(
            "pods",
            "pod shop/cart-1: the proxy's DNS resolver does not listen on 15053",
            "istio-proxy",
        )],
        verify: Some(("redirected", "of both UDP and TCP")),
    },
    Fault {
        name: "the proxy listens and does not accept",
        agent: None,
        parts: &[Part::Proxy],
        plant: |node| {
            let connect = || TcpStream::connect("127.0.0.1:15006").unwrap();
            node.clients.push(node.pod.netns.run(connect).unwrap());
        },
        doctor: &[note(
            "pods",
            "pod shop/cart-1: 1 connection to port 15006 waits: the proxy has accepted none",
            "stopped, frozen or hangs",
        )],
        verify: Some(("", "1 connection to port 15006 waits")),
    },
    Fault {
        name: "the proxy listens on 127.0.0.1 only",
        agent: None,
        parts: &[Part::Proxy],
        plant: |node| node.listen("127.0.0.1"),
        doctor: &[note(
            "pods",
            "pod shop/cart-1: the proxy listens at 127.0.0.1:15006, and redirected connections arrive at 10.",
            "let the proxy listen at every address",
        )],
        verify: Some(("", "\"proxy_silent_on\":[]")),
    },
    Fault {
        name: "the proxy runs as another user",
        agent: None,
        parts: &[Part::Proxy],
        plant: |node| node.proxy_runs_as(1000),
        doctor: &[note(
            "pods",
            "that listens on 15001 and 15006 has uid 1000 and gid 1000: its own connections",
            "runAsUser",
        )],
        verify: Some(("", "its own connections are redirected, too")),
    },
    Fault {
        name: "an annotation of the pod is misspelt",
        agent: None,
        parts: &[Part::Annotations],
        plant: |node| {
            node.annotate(&json!({ "sidecar.istio.io/status": "{}", "traffic.sidecar.istio.io/excludeOutboundPort": "80" }),
            );
        },
        doctor: &[note(
            "pods",
            "did you mean traffic.sidecar.istio.io/excludeOutboundPorts?",
            "correct the annotation",
        )],
        verify: None,
    },
    Fault {
        name: "the runtime watches another directory",
        agent: None,
        parts: &[Part::Runtime],
        plant: |node| {
            let process = node.node.root.create_dir("proc/77/fdinfo");
            node.node.root.create_dir("proc/77/fd");
            let process = process.parent().unwrap();
            for pid in [1, 77] {
                node.node.root.create_dir(format!("proc/{pid}/ns"));
                for kind in ["pid", "user"] {
                    symlink(format!("{kind}:[1]"), node.path(&format!("proc/{pid}/ns/{kind}"))).unwrap();
                }
            }
            fs::write(process.join("comm"), "containerd\n").unwrap();
            fs::write(process.join("status"), "Uid:\t0\t0\t0\t0\n").unwrap();
            symlink("anon_inode:inotify", process.join("fd/9")).unwrap();
            fs::write(process.join("fdinfo/9"), "flags:\t02004000\ninotify wd:1 ino:1 sdev:800001\n")
                .unwrap();
        },
        doctor: &[wrong(
            "watching",
            "",
            "containerd (process 77) does not watch this conf directory",
            "restart containerd",
        )],
        verify: None,
    },
    Fault {
        name: "libcni's cache cannot be read",
        agent: None,
        parts: &[Part::Cache, Part::Annotations],
        plant: |node| {
            fs::remove_dir_all(node.path("var/lib/cni/results")).unwrap();
            node.write("var/lib/cni/results", "");
        },
        doctor: &[wrong("pods", "", "pods may be missing in this list", "--results-dir")],
        verify: None,
    },
    Fault {
        name: "the program directory is read-only",
        agent: None,
        parts: &[Part::ProgramDirectory],
        plant: |node| node.remount("opt/cni/bin", MsFlags::MS_RDONLY),
        doctor: &[wrong("directories", "", "opt/cni/bin is on", "--bin-dir")],
        verify: None,
    },
    Fault {
        name: "programs in the program directory cannot be run",
        agent: Some(Absent),
        parts: &[Part::ProgramDirectory, Part::Plugin],
        plant: |node| node.remount("opt/cni/bin", MsFlags::MS_NOEXEC),
        doctor: &[wrong("directories", "", "which is mounted noexec", "mount it without noexec")],
        verify: None,
    },
    Fault {
        name: "the conf directory is read-only",
        agent: None,
        parts: &[Part::ConfDirectory],
        plant: |node| node.remount("etc/cni/net.d", MsFlags::MS_RDONLY),
        doctor: &[wrong("directories", "", "etc/cni/net.d is on", "--conf-dir")],
        verify: None,
    },
    Fault {
        name: "every user may write to the conf directory",
        agent: None,
        parts: &[Part::ConfDirectory],
        plant: |node| node.set_mode("etc/cni/net.d", 0o777),
        doctor: &[wrong("directories", "", "every user may write to", "chmod 0755")],
        verify: None,
    },
];
