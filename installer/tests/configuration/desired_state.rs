//! The desired state of a node, as derived from the settings, and from an operator's template of the entry
//! (`cni_network_config`) with them.

use crate::{Pairs, read, refused, sources};
use gybe_installer::host::conflist::entry::{Entry, EntryLayout};
use gybe_installer::host::desired::{
    DesiredState, Install, Placement, PlacementOrder, Shape, ShapeSetting, TakeOver, Uninstall,
};
use gybe_installer::host::image::Image;
use gybe_installer::host::observe::Hash;
use gybe_installer::host::settings::{NodeContext, ProgramRemoval, Settings, StandIn};
use gybe_installer::probe::node_backend::node_backend;
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::probe::choose::BackendSetting;
use gybe_plugin::conf::{PluginConf, ProbeHint, unknown_keys};
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
    serde_json::from_slice(&entry.print(&EntryLayout::OneLine)).unwrap()
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
        "facts": { "socket": "/run/gybe/facts.sock", "directory": "", "kubeconfig": "", "deadline_ms": 60000 },
        "capabilities": { "io.kubernetes.cri.pod-annotations": true },
    });
    let entry = json_of(&install.entry);
    assert_eq!(entry, expected);
    let members = entry.as_object().unwrap();
    assert_eq!(PluginConf::read(members).unwrap(), settings.options.conf);
    assert_eq!(unknown_keys(members), [""; 0]);
    assert!(install.entry.print(&EntryLayout::OneLine).starts_with(br#"{"type":"gybe-cni""#));
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
    assert!(matches!(install.shape, ShapeSetting::Fixed(Shape::Standalone { .. })));
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

/// The template of istio-cni's documentation, in its newer and its older form.
const ISTIOS: &str = r#"{"cniVersion":"0.3.1","name":"istio-cni","type":"istio-cni","plugin_log_level":"__LOG_LEVEL__",
    "cni_agent_run_dir":"/var/run/istio-cni","ambient_enabled":false,"exclude_namespaces":["a","istio-system"]}"#;
const OLDER: &str = r#"{"cniVersion":"0.3.1","name":"istio-cni","type":"istio-cni","log_level":"__LOG_LEVEL__",
    "kubernetes":{"kubeconfig":"__KUBECONFIG_FILEPATH__","cni_bin_dir":"/opt/cni/bin",
    "exclude_namespaces":["a","istio-system"]}}"#;

struct Row {
    template: &'static str,
    settings: Pairs<'static>,
    /// The entry's members that differ from those without a template and settings.
    entry: Value,
    notes: &'static [&'static str],
}

fn rows() -> Vec<Row> {
    let row = |template, settings, entry, notes| Row { template, settings, entry, notes };
    vec![
        row(ISTIOS, &[], json!({ "exclude_namespaces": ["a", "istio-system"] }), &[]),
        row(
            ISTIOS,
            &[
                ("log_level", "debug"),
                ("backend", "nft"),
                ("gates", "strict"),
                ("ipv6", "reject"),
                ("inbound_default", "containerPorts"),
                ("max_intervals", "7"),
                ("exclude_namespaces", "b,istio-system"),
            ],
            json!({
                "log_level": "debug", "backend": "nft", "gates": "strict", "ipv6": "reject",
                "inboundDefault": "containerPorts", "max_intervals": 7, "exclude_namespaces": ["b", "istio-system"],
            }),
            &[
                "cni_network_config has exclude_namespaces [\"a\",\"istio-system\"], which exclude_namespaces overrides",
            ],
        ),
        row(
            OLDER,
            &[],
            json!({ "exclude_namespaces": ["a", "istio-system"] }),
            &[
                "cni_network_config names a kubeconfig, which is ignored because pod_source is agent; set pod_source: api",
            ],
        ),
        row(
            OLDER,
            &[("pod_source", "api")],
            json!({ "exclude_namespaces": ["a", "istio-system"], "facts": { "kubeconfig": "/run/gybe/kubeconfig" } }),
            &[],
        ),
        row(
            r#"{"type":"gybe-cni","facts":{"kubeconfig":"/root/.kube/config"}}"#,
            &[("pod_source", "api")],
            json!({ "facts": { "kubeconfig": "/run/gybe/kubeconfig" } }),
            &["cni_network_config names another kubeconfig than the agent writes: the agent's is used"],
        ),
        row(
            r#"{"type":"gybe-cni","backend":"nft","ipv6":"leave","gates":"strict","log_level":"warn"}"#,
            &[("backend", "iptables"), ("log_level", "warn")],
            json!({ "backend": "iptables", "ipv6": "leave", "gates": "strict", "log_level": "warn" }),
            &["cni_network_config has backend \"nft\", which backend overrides"],
        ),
        row(
            r#"{"type":"gybe-cni","native_nftables":true,"capabilities":{"io.kubernetes.cri.pod-annotations":true}}"#,
            &[],
            json!({ "backend": "nft" }),
            &[],
        ),
        row(
            r#"{"type":"gybe-cni","native_nftables":true}"#,
            &[("backend", "iptables-legacy")],
            json!({ "backend": "iptables-legacy" }),
            &["cni_network_config has backend \"nft\", which backend overrides"],
        ),
        row(
            r#"{"type":"gybe-cni","pod_namespace":"else","probed":{"backend":"nft","kernel":"9"},
                "facts":{"socket":"/tmp/x.sock","deadline_ms":500},"capabilities":{"x":true}}"#,
            &[],
            json!({ "facts": { "deadline_ms": 500 } }),
            &[
                "cni_network_config has probed, which is ignored: the agent writes the probe report",
                "cni_network_config has another pod_namespace than the agent's: the agent's is used",
                "cni_network_config has another facts.socket than the agent's: the agent's is used",
                "cni_network_config has other capabilities than pod annotations, which are ignored: gybe-cni needs no others",
            ],
        ),
        row(
            r#"{"type":"gybe-cni","of_a_release_to_come":[1],"facts":{"sockets":1}}"#,
            &[],
            json!({ "of_a_release_to_come": [1] }),
            &["cni_network_config: unknown keys of_a_release_to_come, facts.sockets"],
        ),
        row(
            r#"{"type":"gybe-cni","exclude_namespaces":[]}"#,
            &[],
            json!({ "exclude_namespaces": [] }),
            &[
                "cni_network_config does not contain \"istio-system\", the namespace of istiod: if istiod's own pods are in the mesh, they cannot start without istiod",
            ],
        ),
    ]
}

const POD: Pairs<'_> = &[
    ("POD_NAMESPACE", "gybe-system"),
    ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
    ("KUBERNETES_SERVICE_PORT", "443"),
];

fn entry(settings: &Settings, image: &Image) -> Value {
    json_of(&installed(settings, &node(image)).entry)
}

#[test]
fn settings_and_the_agents_own_values_override_a_template() {
    let (plain, image) = (read(POD, &[]), image("template-base"));
    for Row { template, settings, entry: more, notes } in rows() {
        let files: Vec<_> = settings.iter().copied().chain([("cni_network_config", template)]).collect();
        let with = read(POD, &files);
        let mut expected = entry(&plain, &image);
        for (key, value) in more.as_object().unwrap() {
            match (expected.get_mut(key).and_then(Value::as_object_mut), value.as_object()) {
                (Some(inner), Some(value)) => inner.extend(value.clone()),
                _ => expected[key] = value.clone(),
            }
        }
        let written = entry(&with, &image);
        assert_eq!(written, expected, "{template} {settings:?}");
        assert_eq!(with.notes, notes, "{template} {settings:?}");
        let read_back = PluginConf::read(written.as_object().unwrap()).unwrap();
        assert_eq!(read_back, with.options.conf, "{template} {settings:?}");
    }
}

#[test]
fn the_probe_report_is_written_into_an_entry_with_a_template_too() {
    let settings = read(POD, &[("cni_network_config", ISTIOS)]);
    let probed = ProbeHint { backend: Some(BackendKind::Nft), kernel: "6.1".to_owned() };
    let image = image("template-probed");
    let backend = node_backend(settings.options.conf.backend, None, None);
    let node = NodeContext { backend: Some(&backend), probed: Some(&probed), ..node(&image) };
    assert_eq!(json_of(&installed(&settings, &node).entry)["probed"]["kernel"], "6.1");
}

#[test]
fn the_configmaps_template_takes_precedence_over_the_variables_and_that_over_the_files() {
    let (key, variable) = (r#"{"type":"gybe-cni","ipv6":"leave"}"#, r#"{"type":"gybe-cni","ipv6":"reject"}"#);
    let image = image("template-first");
    let ipv6 = |settings: &Settings| entry(settings, &image)["ipv6"].clone();
    let both = read(&[("CNI_NETWORK_CONFIG", variable)], &[("cni_network_config", key)]);
    assert_eq!(ipv6(&both), "leave");
    let mut of_file = sources(&[], &[]);
    of_file.network_config = Some(key.to_owned());
    assert_eq!(ipv6(&Settings::read(&of_file).unwrap()), "leave");
    of_file.environment.insert("CNI_NETWORK_CONFIG".to_owned(), variable.to_owned());
    assert_eq!(ipv6(&Settings::read(&of_file).unwrap()), "reject");
}

#[test]
fn an_invalid_template_is_refused_with_the_cause() {
    for (template, cause) in [
        (r#"{"type":"gybe-cni","a":"__ETCD__"}"#, "unknown placeholders: __ETCD__"),
        (r#"{"type":"istio-cni","ambient_enabled":true}"#, "the node agent writes the key ambient"),
        (r#"{"type":"gybe-cni","backend":"nftt"}"#, "must be one of auto"),
        (r#"{"type":"calico"}"#, "for the plugin \"calico\""),
        ("{", "cannot be parsed"),
    ] {
        let why = refused(&[("CNI_NETWORK_CONFIG", template)], &[]);
        assert!(why.contains(cause), "{why}");
    }
}
