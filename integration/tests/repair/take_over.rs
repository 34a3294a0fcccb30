//! Pods that istio-cni made ambient go over to Gybe while they run, and back, while clients connect all the time. Every
//! connection is captured and answered, and those that are open go on.

use crate::ambient::A_MINUTE;
use crate::ambient_node::{AmbientNode, inspect};
use crate::clients::{Clients, EndOnDrop, PEER, POD, connect, echoes};
use crate::connections::Linked;
use crate::node::{Node, Pod};
use gybe_integration::namespace::with_own_mounts;
use gybe_integration::programs::{ours, run};
use gybe_integration::ztunnel::Ztunnel;
use gybe_plugin::facts::ambient::{AmbientPod, HandOverBy};
use gybe_plugin::facts::hand_over;
use gybe_test_support::{PATIENCE, wait_for_at_most, wait_until};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::thread;
use std::time::Instant;

/// How istio-cni has written its rules, and the backend that Gybe uses.
const MOVES: [(Form, &str); 6] = [
    (Form::Nft, "nft"),
    (Form::IptablesNft, "nft"),
    (Form::IptablesLegacy, "nft"),
    (Form::IptablesNft, "iptables-nft"),
    (Form::IptablesLegacy, "iptables-legacy"),
    (Form::Nft, "iptables-nft"),
];

/// The rules that istio-cni's nftables backend writes for an ambient pod.
const NFT: &str = "table inet istio-ambient-raw {
    chain prerouting { type filter hook prerouting priority -300; jump istio-prerouting; }
    chain output { type filter hook output priority -300; jump istio-output; }
    chain istio-prerouting { udp sport 53 meta mark & 0xfff != 0x539 counter ct zone set 1; }
    chain istio-output { udp dport 53 meta mark & 0xfff == 0x539 counter ct zone set 1; }
}
table inet istio-ambient-mangle {
    chain prerouting { type filter hook prerouting priority -150; jump istio-prerouting; }
    chain output { type route hook output priority -150; jump istio-output; }
    chain istio-prerouting { meta mark & 0xfff == 0x539 counter ct mark set ct mark & 0xfffff000 | 0x111; }
    chain istio-output { ct mark & 0xfff == 0x111 counter meta mark set ct mark; }
}
table inet istio-ambient-nat {
    chain prerouting { type nat hook prerouting priority -100; jump istio-prerouting; }
    chain output { type nat hook output priority -100; jump istio-output; }
    chain istio-prerouting {
        meta l4proto tcp ip saddr 169.254.7.127 counter accept
        meta l4proto tcp ip6 saddr fd16:9254:7127:1337:ffff:ffff:ffff:ffff counter accept
        ip daddr != 127.0.0.1/32 tcp dport != 15008 meta mark & 0xfff != 0x539 counter redirect to :15006
        ip6 daddr != ::1/128 tcp dport != 15008 meta mark & 0xfff != 0x539 counter redirect to :15006
    }
    chain istio-output {
        meta l4proto tcp ip daddr 169.254.7.127 counter accept
        meta l4proto tcp ip6 daddr fd16:9254:7127:1337:ffff:ffff:ffff:ffff counter accept
        oifname != lo meta mark & 0xfff != 0x539 udp dport 53 counter redirect to :15053
        ip daddr != 127.0.0.1/32 tcp dport 53 meta mark & 0xfff != 0x539 counter redirect to :15053
        ip6 daddr != ::1/128 tcp dport 53 meta mark & 0xfff != 0x539 counter redirect to :15053
        meta l4proto tcp meta mark & 0xfff == 0x111 counter accept
        oifname lo ip daddr != 127.0.0.1/32 counter accept
        oifname lo ip6 daddr != ::1/128 counter accept
        meta l4proto tcp ip daddr != 127.0.0.1/32 meta mark & 0xfff != 0x539 counter redirect to :15001
        meta l4proto tcp ip6 daddr != ::1/128 meta mark & 0xfff != 0x539 counter redirect to :15001
    }
}
";

/// Those of its iptables backends, for a family with this address of localhost and of the probes.
const IPTABLES: &str = "*mangle
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_PRERT -m mark --mark 0x539/0xfff -j CONNMARK --set-xmark 0x111/0xfff
-A ISTIO_OUTPUT -m connmark --mark 0x111/0xfff -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff
COMMIT
*nat
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_PRERT -s PROBES -p tcp -j ACCEPT
-A ISTIO_PRERT ! -d LOCALHOST -p tcp ! --dport 15008 -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15006
-A ISTIO_OUTPUT -d PROBES -p tcp -j ACCEPT
-A ISTIO_OUTPUT ! -o lo -p udp -m mark ! --mark 0x539/0xfff -m udp --dport 53 -j REDIRECT --to-ports 15053
-A ISTIO_OUTPUT ! -d LOCALHOST -p tcp --dport 53 -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15053
-A ISTIO_OUTPUT -p tcp -m mark --mark 0x111/0xfff -j ACCEPT
-A ISTIO_OUTPUT ! -d LOCALHOST -o lo -j ACCEPT
-A ISTIO_OUTPUT ! -d LOCALHOST -p tcp -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15001
COMMIT
*raw
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_PRERT -p udp -m mark ! --mark 0x539/0xfff -m udp --sport 53 -j CT --zone 1
-A ISTIO_OUTPUT -p udp -m mark --mark 0x539/0xfff -m udp --dport 53 -j CT --zone 1
COMMIT
";

const ROUTES: &str = "for family in -4 -6; do
    ip $family rule add fwmark 0x111/0xfff pref 32764 lookup 100 2>/dev/null || true
done
ip route replace local default dev lo table 100 scope host
ip -6 route replace local default dev lo table 100";

/// An unprivileged user may not open /run/xtables.lock, the default lock of all legacy programs.
const LOCK: &str = "export XTABLES_LOCKFILE=/proc/self/ns/net";

/// A rule of istio-cni's, and the same followed by one that it does not write.
const LAST: [(&str, &str); 2] = [
    (
        "meta mark & 0xfff == 0x111 counter accept",
        "meta mark & 0xfff == 0x111 counter accept; tcp dport 9 counter accept",
    ),
    (
        "--mark 0x111/0xfff -j ACCEPT",
        "--mark 0x111/0xfff -j ACCEPT\n-A ISTIO_OUTPUT -p tcp --dport 9 -j ACCEPT",
    ),
];

fn extend(rules: &str) -> String {
    LAST.iter().fold(rules.to_owned(), |rules, (rule, more)| rules.replace(rule, more))
}

fn remove_inbound(rules: &str) -> String {
    rules.lines().filter(|line| !line.contains("15006")).map(|line| format!("{line}\n")).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Nft,
    IptablesNft,
    IptablesLegacy,
}

impl Form {
    /// Writes the rules and routes, the rules after a change of their text.
    fn write_changed(self, pod: &Pod, change: impl Fn(&str) -> String) {
        let variant = match self {
            Self::Nft => None,
            Self::IptablesNft => Some("nft"),
            Self::IptablesLegacy => Some("legacy"),
        };
        let load = |program: &str, arguments: &str, text: &str| {
            let line = format!("{LOCK}; exec {program} {arguments}");
            let loaded = pod.netns.run(|| run("sh", &["-c", &line], text)).unwrap().unwrap();
            assert_eq!(loaded.code, Some(0), "{program}: {loaded:?}");
        };
        pod.sh(ROUTES);
        let Some(variant) = variant else { return load("nft", "-f -", &change(NFT)) };
        for (program, localhost, probes) in [
            ("iptables", "127.0.0.1/32", "169.254.7.127"),
            ("ip6tables", "::1/128", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff"),
        ] {
            let text = change(IPTABLES).replace("LOCALHOST", localhost).replace("PROBES", probes);
            load(&format!("{program}-{variant}-restore"), "--noflush", &text);
        }
    }

    pub(crate) fn write(self, pod: &Pod) {
        self.write_changed(pod, str::to_owned);
    }

    /// The rules of istio-cni in the pod, in text that changes with each of them.
    fn rules(self, pod: &Pod) -> String {
        let list = match self {
            Self::Nft => "for table in raw mangle nat; do nft -s list table inet istio-ambient-$table; done",
            Self::IptablesNft => {
                "for v in '' 6; do for t in raw mangle nat; do ip${v}tables-nft -t $t -S; done; done"
            }
            Self::IptablesLegacy => {
                "for v in '' 6; do for t in raw mangle nat; do ip${v}tables-legacy -t $t -S; done; done"
            }
        };
        let list = format!("{LOCK}; {list}");
        let listed = pod.netns.run(|| run("sh", &["-c", &list], "")).unwrap().unwrap();
        let is_theirs = |line: &&str| self == Self::Nft || line.contains("ISTIO_");
        listed.out.lines().filter(is_theirs).map(|line| format!("{line}\n")).collect()
    }
}

/// A node whose agent serves ztunnel and repairs no pod, as istio-cni's agent did before, and a pod with istio-cni's rules.
fn node_of_istio(test: &str, form: Form, backend: &str, pod: &Pod) -> AmbientNode<Ztunnel> {
    let node = AmbientNode::with_backend(test, "off", backend);
    node.run("shop", pod);
    let uid = pod.uid();
    let described = AmbientPod::parse(&uid, "shop", &pod.name(), "default").unwrap();
    let described = described.with_addresses([POD.parse().unwrap()]);
    let socket = node.cluster.node.root.join("run/gybe/facts.sock");
    let netns = File::open(pod.netns.path()).unwrap();
    let until = Instant::now() + PATIENCE;
    hand_over(&socket, &described, netns.as_fd(), HandOverBy::Repair, until).unwrap();
    node.observe("ztunnel serves the pod", |observed| observed.proxies.contains(&uid));
    form.write(pod);
    node
}

impl AmbientNode<Ztunnel> {
    fn set_repair(&self, repair: &str, backend: &str) {
        self.cluster.set(&[("repair", repair), ("backend", backend), ("exclude_namespaces", "kube-system")]);
    }

    /// The number of connections that ztunnel has forwarded.
    fn forwarded(&self) -> usize {
        self.ztunnel().observed().forwarded.len()
    }
}

/// Reports whether the pod has exactly Gybe's rules and routes, and no other mesh's.
fn is_of_gybe(pod: &Pod) -> bool {
    let path = pod.netns.path().display().to_string();
    let verified = ours("gybe", &["verify", "--netns", &path, "--policy", "-"], r#"{ "kind": "ambient" }"#);
    verified.unwrap().code == Some(0)
}

/// A settled sandbox is judged again within a minute.
fn wait_until_of_gybe(pod: &Pod) {
    let is_alone = wait_for_at_most(A_MINUTE, || is_of_gybe(pod).then_some(()));
    assert!(is_alone.is_some(), "{}", pod.rules());
}

/// The routing rules and routes that deliver packets to ztunnel, of both families.
fn delivery(pod: &Pod) -> Vec<String> {
    let listed =
        pod.sh("ip -d rule show; ip -6 -d rule show; ip route show table 100; ip -6 route show table 100");
    let lines = listed.lines().filter(|line| line.contains("0x111/0xfff") || line.contains("local default"));
    lines.map(str::to_owned).collect()
}

#[test]
fn a_running_pod_of_istio_cni_goes_over_to_gybe_and_every_connection_is_captured_and_goes_on() {
    for (form, backend) in MOVES {
        with_own_mounts(|| go_over(form, backend));
    }
}

fn go_over(form: Form, backend: &str) {
    let (linked, clients) = (Linked::without_connections(), Clients::new());
    let pod = &linked.pod;
    let mut node = node_of_istio(&format!("over-{form:?}-{backend}"), form, backend, pod);
    let mut opened = 0;
    thread::scope(|scope| {
        let ends = EndOnDrop(&clients);
        clients.connect_both_ways(scope, &linked.pod.netns, &linked.peer);
        let mut open = || {
            opened += 2;
            [connect(&linked.peer, POD).unwrap().0, connect(&pod.netns, PEER).unwrap().0]
        };
        let before = open();
        node.restart_agent();
        node.set_repair("repair", backend);
        wait_until_of_gybe(pod);
        let after = open();
        let go_on: Vec<bool> = before.iter().chain(&after).map(echoes).collect();
        assert_eq!(go_on, [true; 4], "{form:?} {backend}: {:#?}", node.ztunnel().observed().requests);
        clients.wait_for_more(20);
        drop(ends);
    });
    let (answered, failures) = clients.into_failures();
    assert_eq!(failures, Vec::<String>::new(), "{form:?} {backend}");
    wait_until("each connection was captured", || node.forwarded() == answered + opened);
    assert_eq!(form.rules(pod).matches("ISTIO_PRERT").count(), 0, "{}", form.rules(pod));
    let delivery = delivery(pod);
    assert!(delivery.len() == 4 && delivery.iter().all(|line| line.contains("proto 71")), "{delivery:#?}");
    let added = format!("add {}", pod.uid());
    let requests = node.ztunnel().observed().requests;
    assert_eq!(requests.iter().filter(|it| **it == added).count(), 2, "{requests:?}");
    assert!(!requests.iter().any(|it| it.starts_with("del")), "{requests:?}");
}

#[test]
fn a_connection_that_opens_while_no_rules_stand_is_not_captured_and_the_count_shows_it() {
    with_own_mounts(|| {
        let (linked, clients) = (Linked::without_connections(), Clients::new());
        let node = node_of_istio("over-gap", Form::Nft, "nft", &linked.pod);
        thread::scope(|scope| {
            let ends = EndOnDrop(&clients);
            clients.serve(scope, &linked.pod.netns);
            let captured = |expected| {
                let _answered = connect(&linked.peer, POD).unwrap();
                wait_until("the access log", || node.forwarded() == expected);
            };
            captured(1);
            linked.pod.sh("nft flush ruleset");
            captured(1);
            Form::Nft.write(&linked.pod);
            captured(2);
            drop(ends);
        });
    });
}

#[test]
fn rules_that_istio_cni_does_not_write_and_pods_that_are_not_ambient_are_left_alone() {
    for form in [Form::Nft, Form::IptablesNft, Form::IptablesLegacy] {
        with_own_mounts(|| {
            let node = AmbientNode::with_backend(&format!("over-not-{form:?}"), "repair", "nft");
            let (extended, opted_out, taken) = (Pod::new(1), Pod::new(2), Pod::new(3));
            form.write_changed(&extended, extend);
            form.write(&opted_out);
            let before = [&extended, &opted_out].map(|pod| form.rules(pod));
            node.label("shop", &opted_out, &json!({ "istio.io/dataplane-mode": "none" }));
            node.cluster.cached("shop", &opted_out, &opted_out.name(), |pod| {
                pod["metadata"]["annotations"] = json!({ "a": "b" });
            });
            node.cluster.node.start(&opted_out);
            node.run("shop", &extended);
            // After the others.
            form.write(&taken);
            node.run("shop", &taken);
            wait_until_of_gybe(&taken);
            let settled = || node.cluster.node.gybe(&["repair", "--dry-run", "--json"]);
            let listed: Value = serde_json::from_str(&settled().out).unwrap();
            for pod in [&extended, &opted_out] {
                let found =
                    listed["sandboxes"].as_array().unwrap().iter().find(|it| it["name"] == pod.name());
                assert_eq!(found.unwrap()["action"], "none", "{listed:#}");
            }
            assert_eq!([&extended, &opted_out].map(|pod| form.rules(pod)), before, "{form:?}");
            let uids = [extended.uid(), opted_out.uid()];
            let proxies = node.ztunnel().observed().proxies;
            assert!(uids.iter().all(|uid| !proxies.contains(uid)), "{proxies:?}");
        });
    }
}

#[test]
fn gybes_rules_are_removed_from_a_pod_of_istio_cni_only_where_those_of_istio_cni_stand() {
    for form in [Form::Nft, Form::IptablesNft, Form::IptablesLegacy] {
        with_own_mounts(|| hand_back(form));
    }
}

fn hand_back(form: Form) {
    let (linked, clients) = (Linked::without_connections(), Clients::new());
    let pod = &linked.pod;
    let node = node_of_istio(&format!("back-{form:?}"), form, "nft", pod);
    node.set_repair("repair", "nft");
    wait_until_of_gybe(pod);
    // Gybe's container has ended, and ztunnel goes on.
    node.set_repair("off", "nft");
    wait_until("no repair", || !node.cluster.node.root.join("run/gybe/repairs.json").exists());
    let remove = || node.cluster.node.gybe(&["remove", "--handed-back", "--json"]);
    let captures = inspect(pod);
    let (before, mut opened) = (remove(), 0);
    assert!(before.code == Some(1) && before.out.contains("so Gybe's stay"), "{before:?}");
    assert_eq!(inspect(pod), captures);
    thread::scope(|scope| {
        let ends = EndOnDrop(&clients);
        clients.connect_both_ways(scope, &linked.pod.netns, &linked.peer);
        let mut open = || {
            opened += 2;
            [connect(&linked.peer, POD).unwrap().0, connect(&pod.netns, PEER).unwrap().0]
        };
        let before = open();
        form.write(pod);
        let theirs = form.rules(pod);
        let between = open();
        let removed = remove();
        assert!(removed.code == Some(0) && removed.out.contains("\"removed\": 1"), "{removed:?}");
        assert!(inspect(pod).starts_with("no rules of Gybe"), "{}", inspect(pod));
        assert_eq!(form.rules(pod), theirs);
        let after = open();
        assert!(before.iter().chain(&between).chain(&after).all(echoes), "{form:?}");
        clients.wait_for_more(20);
        drop(ends);
    });
    let delivery = delivery(pod);
    assert!(delivery.len() == 4 && !delivery.iter().any(|line| line.contains("proto 71")), "{delivery:#?}");
    let (answered, failures) = clients.into_failures();
    assert_eq!(failures, Vec::<String>::new(), "{form:?}");
    wait_until("each connection was captured", || node.forwarded() == answered + opened);
}

#[test]
fn gybes_rules_stay_where_those_of_istio_cni_do_not_lead_every_connection_to_ztunnel_and_back() {
    for form in [Form::Nft, Form::IptablesNft, Form::IptablesLegacy] {
        let node = Node::new(&format!("kept-{form:?}"), "auto");
        let pods = [1, 2, 3, 4, 5].map(|number| annotated(&node, number));
        for pod in &pods {
            let path = pod.netns.path().display().to_string();
            let arguments = ["apply", "--netns", &path, "--backend", "nft", "--policy", "-"];
            let applied = ours("gybe", &arguments, r#"{ "kind": "ambient" }"#).unwrap();
            assert_eq!(applied.code, Some(0), "{applied:?}");
        }
        let [whole, extended, without_inbound, without_mark, without_rule] = &pods;
        form.write(whole);
        form.write_changed(extended, extend);
        form.write_changed(without_inbound, remove_inbound);
        form.write_changed(without_mark, |text| {
            let restores = "-j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff";
            text.replace(" meta mark set ct mark", "").replace(restores, "-j RETURN")
        });
        form.write(without_rule);
        without_rule.sh("ip rule delete pref 32764");
        let kept = [extended, without_inbound, without_mark, without_rule];
        let rules = || kept.map(|pod| [inspect(pod), form.rules(pod), delivery(pod).concat()]);
        let before = rules();
        let removed = node.gybe(&["remove", "--handed-back", "--json"]);
        let json: Value = serde_json::from_str(&removed.out).unwrap();
        assert_eq!((removed.code, &json["removed"]), (Some(1), &json!(1)), "{form:?} {json:#}");
        assert_eq!(json["left"].as_array().unwrap().len(), kept.len(), "{form:?} {json:#}");
        assert_eq!(rules(), before, "{form:?}");
        assert!(inspect(whole).starts_with("no rules of Gybe"), "{}", inspect(whole));
    }
}

/// A pod that istio-cni's agent has made ambient, by the annotation.
pub(crate) fn annotated(node: &Node, number: u32) -> Pod {
    let pod = Pod::new(number);
    node.manifest("shop", &pod, |manifest| {
        manifest["metadata"]["annotations"] = json!({ "ambient.istio.io/redirection": "enabled" });
        manifest["spec"] = json!({ "containers": [{ "name": "app" }] });
    });
    node.cached("shop", &pod, "eth0");
    node.start(&pod);
    pod
}

#[test]
fn ambient_pods_of_istio_cni_whose_connections_do_not_all_go_to_ztunnel_are_found_on_its_node() {
    for form in [Form::Nft, Form::IptablesNft, Form::IptablesLegacy] {
        let node = Node::new(&format!("faults-{form:?}"), "auto");
        let [whole, in_the_clear, without_rule, extended, without_inbound] =
            [1, 2, 3, 4, 5].map(|number| annotated(&node, number));
        form.write(&whole);
        form.write(&without_rule);
        without_rule.sh("ip rule delete fwmark 0x111/0xfff");
        form.write_changed(&extended, extend);
        form.write_changed(&without_inbound, remove_inbound);
        let found = |arguments: &[&str]| {
            let ran = node.gybe(&[arguments, &["--json"]].concat());
            let json: Value = serde_json::from_str(&ran.out).unwrap_or_else(|why| panic!("{why}: {ran:?}"));
            assert_eq!((ran.code, &json["holds"]), (Some(1), &json!(false)), "{ran:?}");
            move |pod: &Pod| {
                let all = json["sandboxes"].as_array().unwrap();
                all.iter().find(|one| one["name"] == pod.name()).unwrap().clone()
            }
        };
        let verified = found(&["verify", "--all"]);
        for (pod, says) in [
            (&whole, "[]"),
            (&without_rule, "IPv4 rule fwmark 0x111/0xfff lookup 100 is missing"),
            (&extended, ":9 keeps its destination instead of port 15001"),
            (&without_inbound, "keeps its destination instead of port 15006"),
        ] {
            let of_pod = verified(pod);
            assert_eq!(of_pod["verdict"], "by-others", "{of_pod:#}");
            assert!(of_pod["notes"].to_string().contains("no policy of an ambient pod"), "{of_pod:#}");
            assert!(of_pod["differences"].to_string().contains(says), "{form:?} {says}: {of_pod:#}");
        }
        let items: Vec<Value> = [&whole, &in_the_clear, &without_rule, &extended]
            .map(|pod| fs::read(node.root.join(format!("pods/shop/{}.json", pod.name()))).unwrap())
            .map(|text| serde_json::from_slice(&text).unwrap())
            .into();
        let list = node.root.write("pods.json", json!({ "kind": "List", "items": items }).to_string());
        let migrated = found(&["migrate", "--dry-run", "--pods", list.to_str().unwrap()]);
        for (pod, change, says) in [
            (&whole, "none", "Gybe replaces istio-cni's rules while the pod runs"),
            (&in_the_clear, "otherwise", "keeps its destination instead of port 15001"),
            (&in_the_clear, "otherwise", "Gybe writes its rules while the pod runs"),
            (&extended, "otherwise", ":9 keeps its destination instead of port 15001"),
            (&extended, "otherwise", "Gybe leaves istio-cni's rules as they are"),
        ] {
            let of_pod = migrated(pod);
            assert_eq!(of_pod["change"], change, "{form:?}: {of_pod:#}");
            assert!(of_pod["reasons"].to_string().contains(says), "{form:?} {says}: {of_pod:#}");
        }
    }
}
