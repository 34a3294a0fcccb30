//! The exemption of the kubelet's probes: connections from a namespace that stands for the node's to one that stands for
//! a pod's. The tests that make a cgroup, `a_cgroup…`, need the machine's root (`SKIP_ROOT_ONLY` in the Makefile).

use crate::container::{CAPABILITIES, Container, Host};
use gybe_demo::testnet::client::{Client, SourceOptions};
use gybe_demo::testnet::listener::{ListenAddress, Listeners, ListeningPort, ServerName};
use gybe_demo::testnet::namespace::{LinkEnd, Namespace, NextHop, join, route};
use gybe_demo::testnet::outcome::ConnectionOutcome;
use gybe_installer::diagnosis::doctor::observe::{DoctorOptions, observe};
use gybe_installer::diagnosis::doctor::{Severity, examine};
use gybe_installer::host::platform::Platform;
use gybe_installer::host::watch::{DirectoryWatch, WakeReason, WatchedDirectories};
use gybe_installer::sandboxes::probe_exemption::{ExemptedPods, ExemptionReport, keep_until, uninstall};
use gybe_integration::namespace::{in_new_namespace, sh};
use gybe_integration::programs::run;
use gybe_netfilter::model::exemption::{KubeletCgroup, ProbeExemption};
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::policy::InterfaceName;
use gybe_netfilter::model::policy::ambient::ProbeAddresses;
use gybe_netfilter::model::ruleset::Transport;
use gybe_netfilter::nft::exemption::{ExemptionChange, KeptExemption};
use gybe_test_support::{PATIENCE, TestDir, assert_takes_less_than, wait_for, wait_until};
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, BufReader, PipeWriter, Read, Write, pipe};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const NODE: [&str; 2] = ["10.9.0.1", "fd00:9::1"];
/// Of the ambient pod.
const POD: [&str; 2] = ["10.9.0.2", "fd00:9::2"];
/// Of another pod, which the same namespace stands for.
const OTHER: [&str; 2] = ["10.9.0.3", "fd00:9::3"];
const PROBE: [&str; 2] = ["169.254.7.127", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff"];
const PORT: u16 = 8080;

struct Node {
    root: TestDir,
    own: Namespace,
    pod: Arc<Namespace>,
    _listeners: Listeners,
    keeper: Option<(PipeWriter, JoinHandle<()>)>,
}

impl Node {
    fn new(test: &str) -> Self {
        let root = TestDir::new(&format!("exemption-{test}")).with_subdirectories(&["run", "proc/1/ns"]);
        let (own, pod) = (Namespace::new().unwrap(), Arc::new(Namespace::new().unwrap()));
        let end = |namespace, addresses: &[&str]| {
            let network =
                |address: &&str| format!("{address}/{}", if address.contains(':') { 64 } else { 24 });
            let addresses = addresses.iter().map(|address| network(address).parse().unwrap()).collect();
            LinkEnd { namespace, name: InterfaceName::parse("eth0").unwrap(), addresses }
        };
        join(&end(&own, &NODE), &end(&pod, &[POD, OTHER].concat())).unwrap();
        for (network, gateway) in [("0.0.0.0/0", NODE[0]), ("::/0", NODE[1])] {
            route(&pod, network.parse().unwrap(), NextHop::Via(gateway.parse().unwrap())).unwrap();
        }
        symlink(own.path(), root.join("proc/1/ns/net")).unwrap();
        for kind in ["pid", "user"] {
            symlink(format!("{kind}:[1]"), root.join("proc/1/ns").join(kind)).unwrap();
        }
        let port = ListeningPort { transport: Transport::Tcp, port: PORT, address: ListenAddress::Any };
        let owner = Owner { uid: 1000, gid: 1000 };
        let listeners = Listeners::start(&pod, owner, ServerName::Name("app"), vec![port]).unwrap();
        Self { root, own, pod, _listeners: listeners, keeper: None }
    }

    /// A node whose exemption is kept for the ambient pod.
    fn kept(test: &str) -> Self {
        let mut node = Self::new(test);
        node.exempts(&POD);
        node.start();
        node.wait_for_report(|report| report.addresses.len() == 2);
        node
    }

    fn start(&mut self) {
        let (stop, running) = pipe().unwrap();
        let root = self.root.path().to_owned();
        let keep = move || keep_until(&root, &root.join("run"), stop.as_fd());
        self.keeper = Some((running, thread::spawn(keep)));
    }

    fn stop(&mut self) {
        if let Some((running, thread)) = self.keeper.take() {
            drop(running);
            thread.join().unwrap();
        }
    }

    fn exempts(&self, addresses: &[&str]) {
        Self::write(addresses, &self.run());
    }

    /// Writes the agent's file.
    fn write(addresses: &[&str], directory: &Path) {
        let addresses: BTreeSet<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let pods = [("5f1d6c1e-70b7-4d3c-9a51-000000000001".to_owned(), addresses)].into();
        ExemptedPods::keep_in(Some(&ExemptedPods { pods, ..ExemptedPods::default() }), directory).unwrap();
    }

    fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    fn wait_for_report(&self, holds: impl Fn(&ExemptionReport) -> bool) -> ExemptionReport {
        wait_for("the report", || ExemptionReport::kept_in(&self.run()).filter(&holds))
    }

    /// The source that the pod sees of a user's connection.
    fn source(&self, uid: u32, to: &str) -> IpAddr {
        let to = SocketAddr::new(to.parse().unwrap(), PORT);
        let owner = Owner { uid, gid: uid };
        let client = Client { owner, transport: Transport::Tcp, to, source: SourceOptions::default() };
        match client.connect(&self.own, PATIENCE).unwrap() {
            ConnectionOutcome::Replied(reply) => reply.source,
            other => panic!("{other}"),
        }
    }

    fn sources(&self, uid: u32, to: [&str; 2]) -> [String; 2] {
        to.map(|address| self.source(uid, address).to_string())
    }

    fn sh(&self, command: &str) -> String {
        self.own.run(|| sh(command)).unwrap()
    }

    /// The table as nft lists it, without counters; empty if there is none.
    fn table(&self) -> String {
        let list = ["--stateless", "list", "table", "inet", "gybe-probes"];
        self.own.run(|| run("nft", &list, "")).unwrap().unwrap().out
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.stop();
        }
    }
}

#[test]
fn roots_connections_to_an_ambient_pod_come_from_the_probes_address() {
    let node = Node::kept("root");
    assert_eq!(node.sources(0, POD), PROBE);
    assert_eq!(node.sources(1000, POD), NODE, "another user's");
    assert_eq!(node.sources(0, OTHER), NODE, "to another pod");
    assert!(!ExemptionReport::kept_in(&node.run()).unwrap().matches_cgroup, "there is no kubelet");
    node.sh("nft delete table inet gybe-probes");
    assert_eq!(node.sources(1000, POD), NODE, "the control: without the table");
}

/// A connection from the node to the ambient pod.
struct OpenConnection {
    client: TcpStream,
    server: TcpStream,
}

impl OpenConnection {
    fn new(node: &Node) -> Self {
        let listener = node.pod.run(|| TcpListener::bind((POD[0], 0)).unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let client = node.own.run(|| TcpStream::connect(address).unwrap()).unwrap();
        let (server, source) = listener.accept().unwrap();
        assert_eq!(source.ip().to_string(), PROBE[0]);
        for end in [&client, &server] {
            end.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        Self { client, server }
    }

    fn echo(&mut self) -> io::Result<()> {
        let mut received = [0; 5];
        self.client.write_all(b"probe")?;
        self.server.read_exact(&mut received)?;
        self.server.write_all(&received)?;
        self.client.read_exact(&mut received)
    }
}

#[test]
fn the_table_is_back_within_a_second_and_open_connections_last() {
    let node = Node::kept("back");
    let table = node.table();
    for change in [
        "nft flush ruleset",
        "nft delete table inet gybe-probes",
        // Neither table has a chain or a set.
        "nft 'delete table inet gybe-probes; add table inet gybe-probes'",
        "nft 'delete table inet gybe-probes; add table inet gybe-probes; add counter inet gybe-probes other'",
        "nft flush chain inet gybe-probes postrouting",
        "nft delete element inet gybe-probes pods-v4 '{ 10.9.0.2 }'",
        "nft flush set inet gybe-probes pods-v6",
        "nft add element inet gybe-probes pods-v4 '{ 10.9.0.3 }'",
        "nft insert rule inet gybe-probes postrouting accept",
        "nft 'add table inet gybe-probes { flags dormant; }'",
        // As firewalld reloads: all in one transaction, with other rules for the same packets.
        "printf '%s\n' 'flush ruleset' 'table inet firewalld {' 'chain nat {' \
         'type nat hook postrouting priority srcnat; masquerade' '}' '}' | nft -f -",
    ] {
        let mut open = OpenConnection::new(&node);
        assert_takes_less_than(Duration::from_secs(1), || {
            node.sh(change);
            wait_until(change, || node.table() == table);
        });
        assert_eq!(node.sources(0, POD), PROBE, "{change}");
        open.echo().unwrap_or_else(|why| panic!("{change}: {why}"));
    }
}

/// As long as any owner's NAT rules are there, the kernel goes on translating the packets of open connections.
#[test]
fn connections_in_use_last_while_the_table_is_replaced_beside_other_owners_nat_rules() {
    let node = Node::kept("in-use");
    let table = node.table();
    node.sh("nft add table ip kube-proxy");
    node.sh("nft 'add chain ip kube-proxy post { type nat hook postrouting priority srcnat; }'");
    // A rule: a chain alone needs no conntrack.
    node.sh("nft add rule ip kube-proxy post meta mark 0x4000 masquerade");
    let (mut open, is_done) = (OpenConnection::new(&node), AtomicBool::new(false));
    let echoes = thread::scope(|scope| {
        let in_use = scope.spawn(|| {
            let mut echoes = 0;
            while !is_done.load(Ordering::Relaxed) {
                open.echo().unwrap();
                echoes += 1;
            }
            echoes
        });
        for _ in 0..5 {
            node.sh("nft delete table inet gybe-probes");
            wait_until("the table is back", || node.table() == table);
        }
        is_done.store(true, Ordering::Relaxed);
        in_use.join().unwrap()
    });
    assert!(echoes > 100, "{echoes}");
}

#[test]
fn an_address_that_stays_is_never_absent() {
    let node = Node::kept("monitor");
    let monitor = node.own.run(|| {
        #[allow(clippy::disallowed_methods, reason = "it runs beside the test")]
        let mut command = Command::new("nft");
        command.args(["monitor"]).stdout(Stdio::piped()).spawn().unwrap()
    });
    let mut monitor = monitor.unwrap();
    let mut lines = BufReader::new(monitor.stdout.take().unwrap()).lines().map(Result::unwrap);
    // The monitor reports changes from some time after its start on.
    let reports = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            wait_until("the monitor reports", || {
                node.sh("nft 'add table inet ready; delete table inet ready'");
                reports.load(Ordering::Relaxed)
            });
        });
        lines.next().unwrap();
        reports.store(true, Ordering::Relaxed);
    });
    node.exempts(&[&POD[..], &OTHER].concat());
    node.wait_for_report(|report| report.addresses.len() == 4);
    node.exempts(&[POD[0], OTHER[1]]);
    node.wait_for_report(|report| report.addresses.len() == 2);
    node.sh("nft add table inet end");
    let events: Vec<String> = lines
        .take_while(|line| line != "add table inet end")
        .filter(|line| !line.starts_with('#') && !line.contains("ready"))
        .collect();
    monitor.kill().unwrap();
    monitor.wait().unwrap();
    let expected = [
        "add element inet gybe-probes pods-v4 { 10.9.0.3 }",
        "add element inet gybe-probes pods-v6 { fd00:9::3 }",
        "delete element inet gybe-probes pods-v4 { 10.9.0.3 }",
        "delete element inet gybe-probes pods-v6 { fd00:9::2 }",
    ];
    assert_eq!(events, expected);
}

#[test]
fn the_node_has_the_table_only_as_long_as_the_agents_file_is_there() {
    let mut node = Node::new("file");
    // A process that was stopped before has left a table, and no file.
    node.sh("nft add table inet gybe-probes");
    node.start();
    wait_until("the table is gone", || node.sh("nft list ruleset").is_empty());
    node.exempts(&[]);
    node.wait_for_report(|report| report.addresses.is_empty() && report.fault.is_none());
    assert!(node.table().contains("set pods-v4"), "{}", node.table());
    node.exempts(&POD);
    node.wait_for_report(|report| report.addresses.len() == 2);
    // A damaged file changes nothing.
    let table = node.table();
    for (text, fault) in [("{", "is not valid"), (&" ".repeat(70_000), "is longer than 64 KiB")] {
        fs::write(node.run().join("new"), text).unwrap();
        fs::rename(node.run().join("new"), node.run().join("exempted-pods.json")).unwrap();
        let has_fault =
            |report: &ExemptionReport| report.fault.as_ref().is_some_and(|why| why.contains(fault));
        let report = node.wait_for_report(has_fault);
        assert_eq!((report.addresses.len(), node.table()), (2, table.clone()));
    }
    // Another process takes over what it finds.
    node.stop();
    node.exempts(&POD);
    let handles = node.sh("nft -a list table inet gybe-probes");
    node.start();
    node.wait_for_report(|report| report.fault.is_none());
    assert_eq!(node.sh("nft -a list table inet gybe-probes"), handles);
    ExemptedPods::keep_in(None, &node.run()).unwrap();
    wait_until("the table is gone", || node.table().is_empty());
    wait_until("the report is gone", || ExemptionReport::kept_in(&node.run()).is_none());
}

#[test]
fn addresses_that_no_pod_can_have_are_not_exempt() {
    let mut node = Node::new("refused");
    let refused =
        ["0.0.0.0", "127.0.0.1", "169.254.1.1", "224.0.0.1", "255.255.255.255", "::1", "fe80::1", "ff02::1"];
    node.exempts(&[&POD[..], &NODE[..], &refused[..]].concat());
    node.start();
    let report = node.wait_for_report(|report| report.fault.is_some());
    let exempt: Vec<String> = report.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(exempt, POD);
    assert!(NODE.iter().chain(&refused).all(|address| report.fault.as_ref().unwrap().contains(address)));
    assert_eq!(node.sources(0, POD), PROBE);
}

#[test]
fn the_removal_of_the_agents_file_wakes_the_process_that_keeps_the_exemption() {
    let run = TestDir::new("exemption-wakes");
    Node::write(&POD, run.path());
    let renamed = vec![run.path().to_owned()];
    let mut watch = DirectoryWatch::of(WatchedDirectories { written: Vec::new(), renamed });
    ExemptedPods::keep_in(None, run.path()).unwrap();
    assert_eq!(watch.wait(PATIENCE, None), WakeReason::Changed);
    assert_eq!(ExemptedPods::kept_in(run.path()).unwrap(), None);
    ExemptedPods::keep_in(None, run.path()).unwrap();
}

#[test]
fn an_uninstall_removes_the_table_that_a_stopped_process_left() {
    let mut node = Node::kept("uninstall");
    node.stop();
    assert!(!node.table().is_empty(), "an upgrade keeps it");
    uninstall(&node.root, &node.run()).unwrap();
    assert_eq!(node.table(), "");
    assert!(!node.run().join("exempted-pods.json").exists());
    fs::remove_file(node.run().join("probe-exemption.json")).unwrap();
    node.sh("nft add table inet gybe-probes");
    uninstall(&node.root, &node.run()).unwrap();
    assert_eq!(node.table(), "", "without the files");
}

#[test]
fn the_container_repair_keeps_the_exemption_with_its_capabilities() {
    let node = Node::new("container");
    let (host, container) = (Host::without("exemption", &[]), Container::new("exemption"));
    let probe = container.probe(&host, &CAPABILITIES);
    let mut child =
        container.start(&format!("{probe} --watch --keep --repair --root {}", node.root.display()));
    let shared = host.report_path().parent().unwrap().to_owned();
    wait_until("the directory of the files", || shared.is_dir());
    Node::write(&POD, &shared);
    wait_until("the report", || {
        ExemptionReport::kept_in(&shared).is_some_and(|report| report.addresses.len() == 2)
    });
    assert_eq!(node.sources(0, POD), PROBE);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The findings of `gybe doctor` about the pods' probes.
fn doctor(node: &Node) -> Vec<(Severity, String)> {
    let options = DoctorOptions {
        directories: Platform::of_host(&node.root).node_directories(&node.root),
        run: node.run(),
        root: node.root.path().to_owned(),
        image: None,
        confirmed: None,
    };
    let found = examine(&observe(options)).into_iter();
    found.filter(|one| one.text.contains("probes")).map(|one| (one.severity, one.text)).collect()
}

#[test]
fn doctor_finds_a_missing_exemption_and_branch_interfaces() {
    let mut node = Node::new("doctor");
    let conflist =
        r#"{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge"},{"type":"gybe-cni"}]}"#;
    node.root.write("etc/cni/net.d/10-pods.conflist", conflist);
    assert_eq!(doctor(&node), [], "there are no ambient pods");
    node.sh("nft add table inet gybe-probes");
    let [(Severity::Wrong, text)] = &doctor(&node)[..] else { panic!("{:?}", doctor(&node)) };
    assert!(text.ends_with("come from the probes' address"), "{text}");
    node.sh("nft delete table inet gybe-probes");
    node.exempts(&POD);
    let [(Severity::Wrong, text)] = &doctor(&node)[..] else { panic!("{:?}", doctor(&node)) };
    let because = "table inet gybe-probes is not as it should be (set pods-v4 is missing, and 2 more differences): \
                   ztunnel takes the kubelet's probes";
    assert!(text.starts_with(because), "{text}");
    node.start();
    node.wait_for_report(|report| report.addresses.len() == 2);
    let of_root =
        "every connection of root on the node to ambient pods is exempt, not the kubelet's probes alone";
    let well = [
        (Severity::Ok, "the kubelet's probes of 1 ambient pod are exempt".to_owned()),
        (Severity::Note, of_root.to_owned()),
    ];
    assert_eq!(doctor(&node), well);
    node.sh("ip link add name vlan.eth.1 type veth peer name other");
    assert_eq!(doctor(&node), well);
    node.sh("echo 0 > /proc/sys/net/ipv4/tcp_early_demux");
    let [first, second, (Severity::Note, text)] = &doctor(&node)[..] else { panic!("{:?}", doctor(&node)) };
    assert_eq!([first, second], [&well[0], &well[1]]);
    assert!(text.starts_with("pods may be behind branch interfaces"), "{text}");
}

/// The kernel accepts no level above 255, as if it could match no cgroup.
#[test]
fn roots_connections_are_exempt_where_the_kernel_cannot_match_the_cgroup() {
    in_new_namespace(|| {
        let numbered = |n: u32| {
            [
                Ipv4Addr::from_bits(0x0a00_0000 + n).into(),
                Ipv6Addr::from_bits((0xfd << 120) + u128::from(n)).into(),
            ]
        };
        let pods: BTreeSet<IpAddr> = (0..1500).flat_map(numbered).collect();
        let cgroup = Some(KubeletCgroup { level: 256, id: 1 });
        let mut exemption = ProbeExemption { cgroup, source: ProbeAddresses::default(), pods };
        let kept = |change| KeptExemption { matches_cgroup: false, change };
        assert_eq!(exemption.keep().unwrap(), kept(ExemptionChange::Table));
        let of_root = ProbeExemption { cgroup: None, ..exemption.clone() };
        assert_eq!(of_root.differences().unwrap(), []);
        assert_eq!(exemption.keep().unwrap(), kept(ExemptionChange::None));
        exemption.pods.clear();
        assert_eq!(exemption.keep().unwrap(), kept(ExemptionChange::Addresses(3000)));
        assert_eq!(sh("nft list ruleset").matches("elements").count(), 0);
    });
}

/// A cgroup that is removed with the value.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).unwrap();
        let mount = Path::new(mount.split(' ').nth(4).unwrap());
        let cgroup = Self(mount.join(format!("gybe-exemption-{}", std::process::id())));
        fs::create_dir_all(cgroup.kubelet().join("plugin")).unwrap();
        cgroup
    }

    fn kubelet(&self) -> PathBuf {
        self.0.join("kubelet.service")
    }

    fn remove_kubelet(&self) {
        for directory in [self.kubelet().join("plugin"), self.kubelet()] {
            wait_until("the cgroup is empty", || fs::remove_dir(&directory).is_ok());
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for directory in [self.kubelet().join("plugin"), self.kubelet(), self.0.clone()] {
            let _ = fs::remove_dir(directory);
        }
    }
}

#[test]
fn a_cgroup_of_the_kubelet_makes_its_connections_come_from_the_probes_address_and_no_others() {
    let cgroup = Cgroup::new();
    let mut node = Node::new("cgroup");
    let kubelet = node.root.create_dir("proc/7/ns");
    let process = kubelet.parent().unwrap();
    fs::write(process.join("comm"), "kubelet\n").unwrap();
    fs::write(process.join("status"), "Name:\tkubelet\nUid:\t0\t0\t0\t0\n").unwrap();
    let name = cgroup.0.file_name().unwrap().to_str().unwrap();
    fs::write(process.join("cgroup"), format!("0::/{name}/kubelet.service\n")).unwrap();
    for kind in ["pid", "user"] {
        symlink(format!("{kind}:[1]"), kubelet.join(kind)).unwrap();
    }
    // The same as this process's, unless the test is started by: unshare -C.
    let cgroups = format!("/proc/{}/ns/cgroup", std::os::unix::process::parent_id());
    symlink(cgroups, node.root.join("proc/1/ns/cgroup")).unwrap();
    symlink(node.own.path(), kubelet.join("net")).unwrap();
    let is_away = node.root.join("proc/away");
    node.exempts(&POD);
    node.start();
    let source_of = |cgroup: &Path, to: &str| {
        let connect = format!("exec 3<>/dev/tcp/{to}/{PORT} && timeout 5 cat <&3");
        let script = format!("echo $$ > {}/cgroup.procs; exec bash -c '{connect}'", cgroup.display());
        node.own.run(|| run("sh", &["-c", &script], "")).unwrap().unwrap().out
    };
    let [v4, v6] = PROBE.map(|address| format!("app src={address}"));
    for _ in 0..2 {
        node.wait_for_report(|report| report.matches_cgroup);
        wait_until("the kubelet's probes come from the probes' address", || {
            source_of(&cgroup.kubelet(), POD[0]) == v4
        });
        assert_eq!(source_of(&cgroup.kubelet(), POD[1]), v6);
        let table = node.table();
        assert!(
            table.contains("kubelet.service\" counter ct label set 127 comment \"label-probe-v6\""),
            "{table}"
        );
        assert!(
            table.contains("@pods-v4 ct label & 127 == 127 counter snat ip to 169.254.7.127 comment"),
            "{table}"
        );
        assert_eq!(source_of(&cgroup.kubelet().join("plugin"), POD[0]), v4, "a cgroup below");
        assert_eq!(source_of(&cgroup.0, POD[0]), format!("app src={}", NODE[0]), "a cgroup above");
        assert_eq!(source_of(&cgroup.kubelet(), OTHER[0]), format!("app src={}", NODE[0]), "another pod");
        assert_eq!(node.sources(0, POD), NODE, "root outside of the cgroup");
        // The kubelet is restarted. Meanwhile the table is kept, as by a change of the pods, without root's connections.
        fs::rename(process, &is_away).unwrap();
        cgroup.remove_kubelet();
        node.exempts(&[POD[0]]);
        assert!(node.wait_for_report(|report| report.addresses.len() == 1).matches_cgroup);
        assert_eq!(node.source(0, POD[0]).to_string(), NODE[0]);
        node.exempts(&POD);
        node.wait_for_report(|report| report.addresses.len() == 2);
        fs::create_dir_all(cgroup.kubelet().join("plugin")).unwrap();
        fs::rename(&is_away, process).unwrap();
    }
    // A kubelet in the root cgroup.
    fs::write(process.join("cgroup"), "0::/\n").unwrap();
    node.exempts(&POD);
    node.wait_for_report(|report| !report.matches_cgroup);
    assert_eq!(node.sources(0, POD), PROBE);
    node.stop();
}
