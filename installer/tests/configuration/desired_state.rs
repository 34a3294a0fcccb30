//! The desired state of a node, as derived from the settings.

use crate::{Pairs, read};
use gybe_installer::host::conflist::entry::{Entry, Layout};
use gybe_installer::host::desired::{
    DesiredState, Install, Placement, PlacementOrder, Shape, TakeOver, Uninstall,
};
use gybe_installer::host::image::Image;
use gybe_installer::host::observe::Hash;
use gybe_installer::host::settings::{NodeContext, ProgramRemoval, Settings, StandIn};
use gybe_installer::probe::node_backend::node_backend;
use gybe_netfilter::probe::choose::BackendSetting;
use gybe_plugin::conf::{PluginConf, unknown_keys};
use gybe_test_support::TestDir;
use serde_json::{Value, json};
use std::fs;

pub(crate) fn image(test: &str) -> Image {
    let directory = TestDir::new(&format!("image-{test}"));
    directory.write("gybe", "tool");
    let plugin = directory.write("gybe-cni", "plugin");
    let image = Image::read(&directory).unwrap();
    fs::remove_file(plugin).unwrap();
    assert!(Image::read(&directory).unwrap_err().to_string().ends_with("gybe-cni"));
    image
}

pub(crate) fn node(image: &Image) -> NodeContext<'_> {
    NodeContext {
        image,
        backend: None,
        probed: None,
        take_over: TakeOver::Now,
        stand_in: StandIn::None,
        program_removal: ProgramRemoval::Now,
    }
}

pub(crate) fn installed(settings: &Settings, node: &NodeContext<'_>) -> Install {
    match settings.desired(node).unwrap() {
        DesiredState::Installed(install) => install,
        DesiredState::Uninstalled(uninstall) => panic!("{uninstall:?}"),
    }
}

fn uninstalled(settings: &Settings, node: &NodeContext<'_>) -> Uninstall {
    match settings.desired(node).unwrap() {
        DesiredState::Uninstalled(uninstall) => uninstall,
        DesiredState::Installed(install) => panic!("{install:?}"),
    }
}

pub(crate) fn json_of(entry: &Entry) -> Value {
    serde_json::from_slice(&entry.print(&Layout::OneLine)).unwrap()
}

#[test]
fn the_plugin_reads_every_key_of_the_entry() {
    let image = image("entry");
    let settings =
        read(&[("POD_NAMESPACE", "gybe-system")], &[("log_level", "debug"), ("backend", "iptables")]);
    let install = installed(&settings, &node(&image));
    let expected = json!({
        "type": "gybe-cni", "log_level": "debug", "backend": "iptables",
        "exclude_namespaces": ["gybe-system", "istio-system", "kube-system"], "pod_namespace": "gybe-system",
        "gates": "istio", "inboundDefault": "all", "ipv6": "auto", "max_intervals": 4096,
        "facts": { "socket": "/run/gybe/facts.sock", "directory": "", "kubeconfig": "", "deadline_ms": 10000 },
        "capabilities": { "io.kubernetes.cri.pod-annotations": true },
    });
    let entry = json_of(&install.entry);
    assert_eq!(entry, expected);
    let members = entry.as_object().unwrap();
    assert_eq!(PluginConf::read(members).unwrap(), settings.options.conf);
    assert_eq!(unknown_keys(members), [""; 0]);
    assert!(install.entry.print(&Layout::OneLine).starts_with(br#"{"type":"gybe-cni""#));
}

#[test]
fn the_backend_of_the_nodes_label_is_in_its_entry_also_with_a_template() {
    let image = image("backend");
    let backend = node_backend(BackendSetting::Auto, Some("iptables-legacy"), None);
    let node = NodeContext { backend: Some(&backend), ..node(&image) };
    let entry_backend =
        |files: Pairs<'_>| json_of(&installed(&read(&[], files), &node).entry)["backend"].clone();
    assert_eq!(entry_backend(&[]), "iptables-legacy");
    assert_eq!(entry_backend(&[("backend", "nft")]), "iptables-legacy", "the node's label takes precedence");
    let template = ("cni_network_config", r#"{"type":"gybe-cni","backend":"nft"}"#);
    assert_eq!(entry_backend(&[template]), "iptables-legacy", "also over a template's");
}

#[test]
fn pods_depend_on_the_plugin_and_on_the_tool_only_with_pod_source_api() {
    let image = image("needs");
    let server = [("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("KUBERNETES_SERVICE_PORT", "443")];
    for (source, tool) in [("agent", PlacementOrder::AfterEntry), ("api", PlacementOrder::BeforeEntry)] {
        let files = [("pod_source", source), ("also_as", "istio-iptables")];
        let stand_in = NodeContext { stand_in: StandIn::IfAbsent, ..node(&image) };
        let needs: Vec<_> =
            installed(&read(&server, &files), &stand_in).programs.iter().map(|it| it.need).collect();
        assert_eq!(
            needs,
            [PlacementOrder::BeforeEntry, tool, PlacementOrder::AfterEntry, PlacementOrder::AfterEntry],
            "{source}"
        );
    }
}

#[test]
fn programs_are_placed_in_order_and_under_the_configured_names() {
    let image = image("programs");
    let names = |install: &Install| -> Vec<String> {
        install.programs.iter().map(|program| program.name.to_string()).collect()
    };
    assert_eq!(names(&installed(&read(&[], &[]), &node(&image))), ["gybe-cni", "gybe"]);
    let files = [("also_as", "istio-cni-taint, istio-iptables"), ("shape", "standalone")];
    let stand_in = NodeContext { stand_in: StandIn::IfAbsent, ..node(&image) };
    let install = installed(&read(&[("CNI_CONF_GROUP_READ", "true")], &files), &stand_in);
    assert_eq!(names(&install), ["gybe-cni", "gybe", "istio-cni-taint", "istio-iptables", "istio-cni"]);
    assert_eq!(install.programs.last().unwrap().place, Placement::IfAbsent);
    assert_eq!(install.programs[3].hash, install.programs[1].hash);
    let own = NodeContext { stand_in: StandIn::Ours(install.programs[0].hash), ..node(&image) };
    let own = installed(&read(&[], &[]), &own);
    assert_eq!((own.programs[2].place, own.programs[2].hash), (Placement::Always, own.programs[0].hash));
    let over = NodeContext { stand_in: StandIn::Obsolete(install.programs[0].hash), ..node(&image) };
    let over = installed(&read(&[], &[]), &over);
    assert_eq!((names(&over).len(), over.retired[0].hash), (2, install.programs[0].hash));
    let dropped: Vec<_> = over.retired.iter().map(|it| it.name.to_string()).collect();
    assert_eq!(dropped, ["istio-cni", "istio-iptables", "istio-iptables.sh", "istio-cni-taint"]);
    assert_eq!(over.retired[0].name.to_string(), "istio-cni");
    assert_eq!(install.mode, 0o640);
    assert!(matches!(install.shape, Shape::Standalone { .. }));
}

#[test]
fn f29_uninstall_removes_all_programs_and_defers_those_that_may_still_be_called() {
    let image = image("leaving");
    let files = [("mode", "leave"), ("also_as", "istio-iptables"), ("conf_name", "x.conf")];
    let uninstall = uninstalled(&read(&[], &files), &node(&image));
    let programs: Vec<_> = uninstall.programs.iter().map(ToString::to_string).collect();
    assert_eq!(programs, ["gybe-cni"]);
    let retired: Vec<_> = uninstall.retired.iter().map(|it| it.name.to_string()).collect();
    assert_eq!(
        retired,
        ["istio-iptables", "istio-iptables.sh", "istio-cni-taint"],
        "whatever also_as was before"
    );
    assert!(
        !uninstall.in_grace_period && uninstall.last.as_ref().is_some_and(|name| name.to_string() == "gybe")
    );
    let later = uninstalled(
        &read(&[], &files),
        &NodeContext { program_removal: ProgramRemoval::Deferred, ..node(&image) },
    );
    assert!(later.in_grace_period, "the plugin must stay during the grace period");
    let tombstones: Vec<_> = uninstall.tombstones.iter().map(|it| (it.name.to_string(), it.place)).collect();
    assert_eq!(tombstones, [("gybe-cni".to_owned(), Placement::Always)]);
    let old = Hash::of(b"an older plugin");
    let stands =
        uninstalled(&read(&[], &files), &NodeContext { stand_in: StandIn::Ours(old), ..node(&image) });
    assert_eq!(stands.stand_in, Some(old), "the installed stand-in is recognized by its hash");
    assert_eq!(
        (uninstall.plugin.as_str(), uninstall.pinned.unwrap().to_string()),
        ("gybe-cni", "x.conf".to_owned())
    );
}
