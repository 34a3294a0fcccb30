//! Pods on a node whose backend in use is iptables-legacy: because its kernel has no other, or because of the node's
//! label. A seccomp filter simulates a kernel without nf_tables.

use gybe_installer::probe::node_backend::{NodeProbe, node_backend};
use gybe_integration::failure::Failure;
use gybe_integration::flow_check::{Rules, Until, differences};
use gybe_integration::plugin_call::{PluginCall, PluginDir, pod};
use gybe_integration::programs::{Run, path_of_ours, run};
use gybe_integration::topology::Topology;
use gybe_integration::vectors::{Flow, Location as At};
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::policy::Mode;
use gybe_netfilter::model::ruleset::Transport;
use gybe_netfilter::probe::choose::BackendSetting;
use gybe_plugin::conf::PluginConf;
use gybe_plugin::probe_cache::ProbeCache;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};
use serde_json::{Map, Value, json};
use std::thread;

const APP: Owner = Owner { uid: 1000, gid: 1000 };
const PROXY: Owner = Owner { uid: 1337, gid: 1337 };

/// Returns outbound and inbound flows of both families, of the application and of the proxy.
fn flows() -> Result<Vec<Flow>, Failure> {
    let table = [
        (At::Pod, APP, "10.1.2.3:80", "10.244.0.10", "ext-peer", "envoy:15001"),
        (At::Pod, APP, "[2001:db8::7]:80", "fd00:10::10", "ext-peer", "envoy:15001"),
        (At::Pod, APP, "10.1.2.3:3306", "10.244.0.10", "ext-peer", "ext-peer"),
        (At::Pod, PROXY, "10.1.2.3:80", "10.244.0.10", "ext-peer", "ext-peer"),
        (At::Peer, APP, "10.244.0.10:8080", "10.244.0.1", "app:8080", "envoy:15006"),
        (At::Peer, APP, "[fd00:10::10]:8080", "fd00:10::1", "app:8080", "envoy:15006"),
        (At::Peer, APP, "10.244.0.10:15020", "10.244.0.1", "envoy:15020", "envoy:15020"),
    ];
    let flow = |(from, owner, to, source, without, with): (At, Owner, &str, &str, &str, &str)| {
        let outcome = |by: &str| match by == "envoy:15001" || by == "envoy:15006" {
            true => format!("{by} orig={to} src={source}"),
            false => format!("{by} src={source}"),
        };
        Ok(Flow {
            id: format!("{from:?} {owner:?} {to}"),
            from,
            transport: Transport::Tcp,
            to: to.parse()?,
            owner,
            source: None,
            source_port: None,
            mark: None,
            without_rules: outcome(without).parse()?,
            with_rules: outcome(with).parse()?,
        })
    };
    table.into_iter().map(flow).collect()
}

/// A pod in the recorded network.
struct Pod {
    topology: Topology,
    flows: Vec<Flow>,
}

impl Pod {
    fn new() -> Result<Self, Failure> {
        let flows = flows()?;
        let topology = Topology::new(Mode::Redirect, &flows)?;
        let control = differences(&topology, &flows, Rules::Absent, Until::End)?;
        assert!(control.is_empty(), "without rules: {control:#?}");
        Ok(Self { topology, flows })
    }

    /// Returns the ADD of the pod's sandbox, with these members in the plugin's entry.
    fn call(&self, directory: &PluginDir, members: &Map<String, Value>) -> Result<PluginCall, Failure> {
        let mut call = PluginCall::add(self.topology.at(At::Pod), directory)?;
        call.stdin.as_object_mut().unwrap().extend(members.clone());
        Ok(call)
    }

    /// Asserts that the rules are in legacy tables, and that every connection reaches its destination.
    fn assert_redirected_by_legacy(&self, ran: &Run) -> Result<(), Failure> {
        assert_eq!(ran.code, Some(0), "{ran:#?}");
        assert!(ran.err.contains(r#""tool":"iptables-legacy""#), "{}", ran.err);
        let found = differences(&self.topology, &self.flows, Rules::Present, Until::End)?;
        assert!(found.is_empty(), "{found:#?}");
        let listed = |program: &str| self.topology.at(At::Pod).run(|| run(program, &["-t", "nat"], ""));
        assert!(listed("iptables-legacy-save")??.out.contains("-A ISTIO_OUTPUT"));
        assert!(listed("ip6tables-legacy-save")??.out.contains("-A ISTIO_OUTPUT"));
        let nft = self.topology.at(At::Pod).run(|| run("nft", &["list", "ruleset"], ""))??;
        assert_eq!(nft.out, "");
        Ok(())
    }
}

fn probe(directory: &PluginDir) -> Result<Value, Failure> {
    let ran = directory.sh(&format!("exec {} probe --json", path_of_ours("gybe")?.display()), "")?;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    Ok(serde_json::from_str(&ran.out)?)
}

#[test]
fn f23_on_a_kernel_without_nf_tables_iptables_legacy_is_chosen_and_works() -> Result<(), Failure> {
    let (directory, pod) = (PluginDir::new("legacy-kernel"), Pod::new()?);
    let auto = pod.call(&directory, &Map::new())?.with_backend("auto");
    let (report, ran, again) = without_nf_tables(|| {
        let report = probe(&directory)?;
        let ran = auto.run(&directory, "")?;
        Ok::<_, Failure>((report, ran, auto.clone().with_verb("CHECK").run(&directory, "")?))
    })?;
    assert_eq!(report["chosen"]["backend"], "iptables-legacy", "{report:#}");
    for backend in ["nft", "iptables-nft"] {
        assert_eq!(report["backends"][backend]["v4"]["finding"], "refused", "{report:#}");
    }
    pod.assert_redirected_by_legacy(&ran)?;
    assert_eq!(again.code, Some(0), "{again:#?}");
    Ok(())
}

/// All programs of that backend exist, so only a trial shows that it does not work.
#[test]
fn f28_on_a_kernel_without_nf_tables_the_setting_nft_makes_status_fail() -> Result<(), Failure> {
    let (directory, pod) = (PluginDir::new("legacy-word"), pod()?);
    let call = PluginCall::add(&pod, &directory)?.with_verb("STATUS").with_backend("nft");
    let ran = without_nf_tables(|| call.run(&directory, ""))?;
    let report: Value = serde_json::from_str(&ran.out)?;
    assert_eq!((ran.code, &report["code"]), (Some(1), &json!(50)), "{ran:#?}");
    let message = report["msg"].as_str().unwrap_or_default();
    assert!(
        message.contains("GYBE-STATUS-027: no backend works on this node for nft: nft: v4 refused"),
        "{message}"
    );
    Ok(())
}

/// The agent combines the node's probe report and label into the entry.
#[test]
fn a_node_with_the_label_iptables_legacy_gets_legacy_rules() -> Result<(), Failure> {
    let (directory, pod) = (PluginDir::new("legacy-label"), Pod::new()?);
    let report = probe(&directory)?;
    let known = ProbeCache::at(&directory.run().join("gybe")).load();
    let capabilities = known.ok_or_else(|| Failure::new("nothing is known"))?;
    let kernel = report["kernel"].as_str().unwrap_or_default().to_owned();
    let found = NodeProbe { kernel, capabilities };
    let forced = node_backend(BackendSetting::Auto, Some("iptables-legacy"), Some(&found));
    let mut conf = PluginConf::default();
    forced.write_into(&mut conf);
    let members =
        conf.to_members().into_iter().filter(|(key, _)| key == "backend" || key == "probed").collect();
    assert_eq!(Value::Object(Map::clone(&members)), json!({ "backend": "iptables-legacy" }));
    pod.assert_redirected_by_legacy(&pod.call(&directory, &members)?.run(&directory, "")?)
}

/// After a boot there is no probe report; the entry names the backend to try first, for this kernel only.
#[test]
fn f04_the_entrys_probe_result_is_tried_first_and_on_this_kernel_only() -> Result<(), Failure> {
    let kernel = nix::sys::utsname::uname()?.release().to_string_lossy().into_owned();
    for (of, tool) in [(kernel.as_str(), "iptables-legacy"), ("2.6.32", "nft")] {
        let (directory, pod) = (PluginDir::new(&format!("legacy-hint-{tool}")), Pod::new()?);
        let probed = json!({ "backend": "auto", "probed": { "backend": "iptables-legacy", "kernel": of } });
        let ran = pod.call(&directory, probed.as_object().unwrap())?.run(&directory, "")?;
        assert_eq!(ran.code, Some(0), "{ran:#?}");
        assert!(ran.err.contains(&format!(r#""tool":"{tool}""#)), "{}", ran.err);
        let known: Value =
            serde_json::from_str(&std::fs::read_to_string(directory.run().join("gybe/probe.json"))?)?;
        let tried: Vec<&String> = known["backends"].as_object().unwrap().keys().collect();
        assert_eq!(tried, [tool], "{known}");
    }
    Ok(())
}

/// linux/netlink.h, linux/socket.h.
const AF_NETLINK: u64 = 16;
const NETLINK_NETFILTER: u64 = 12;

/// Runs `work` on a new thread with the filter; a seccomp filter cannot be removed from a thread.
pub(crate) fn without_nf_tables<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let filtered = scope.spawn(|| {
            seccompiler::apply_filter(&filter()).unwrap();
            work()
        });
        filtered.join().unwrap()
    })
}

/// Makes `socket(AF_NETLINK, _, NETLINK_NETFILTER)` fail with EPROTONOSUPPORT, which `netlink_create` returns for an
/// unregistered protocol (net/netlink/af_netlink.c, v6.18).
fn filter() -> BpfProgram {
    let is = |argument, value| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value).unwrap()
    };
    let rule = SeccompRule::new(vec![is(0, AF_NETLINK), is(2, NETLINK_NETFILTER)]).unwrap();
    let refuse = SeccompAction::Errno(nix::errno::Errno::EPROTONOSUPPORT as u32);
    let arch: TargetArch = std::env::consts::ARCH.try_into().unwrap();
    let rules = [(nix::libc::SYS_socket, vec![rule])].into_iter().collect();
    SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap().try_into().unwrap()
}
