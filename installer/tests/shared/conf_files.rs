//! Reference conf files, templates and kubeconfigs of istio-cni and other projects, read and written by the
//! installer's functions, and the sixteen end-to-end cases of istio-cni's installer.

use crate::test_node::TestNode;
use crate::{json, shared, test_node, text, with_gybes_entry, without_names_and_versions};
use gybe_installer::agent::kubeconfig::{Credentials, render};
use gybe_installer::host::conflist::entry::Entry;
use gybe_installer::host::conflist::{ConflistError, IstioEntry, PluginChain, listed};
use gybe_installer::host::desired::{DesiredState, PutBack, Shape, ShapeSetting};
use gybe_installer::host::libcni::network;
use gybe_installer::host::observe::FileFormat;
use gybe_installer::host::problem::Problem;
use gybe_installer::host::settings::{ApiServer, ServerTrust, Settings, SettingsSources};
use serde_json::Value;

fn unit(file: &str) -> Vec<u8> {
    shared(&format!("install-unit/{file}"))
}

#[test]
fn our_entry_is_written_where_istio_cnis_was() {
    let ours = test_node::entry("info");
    let single = listed(&unit("bridge.conf"), &ours).unwrap();
    assert_eq!(
        without_names_and_versions(json(&single)),
        without_names_and_versions(with_gybes_entry(&unit("bridge.conf.golden")))
    );
    assert_eq!(json(&single)["name"], "dbnet");
    assert_eq!(json(&single)["cniVersion"], "0.4.0");
    for file in ["list.conflist", "list-with-istio.conflist"] {
        let before = unit(file);
        let with = PluginChain::read(&before).unwrap().with(&ours, IstioEntry::Replace).unwrap();
        assert_eq!(json(&with), with_gybes_entry(&unit(&format!("{file}.golden"))), "{file}");
    }
    assert_eq!(PluginChain::read(&unit("invalid-map.conflist")).unwrap_err(), ConflistError::NoPlugins);
    assert_eq!(PluginChain::read(&unit("invalid-arr.conflist")).unwrap_err(), ConflistError::NoPlugins);
    assert!(Entry::parse(&unit("invalid-arr.conflist")).is_err());
    let without = PluginChain::read(&unit("list-with-istio.conflist")).unwrap().without("istio-cni").unwrap();
    assert_eq!(json(&without), json(&unit("list-no-istio.conflist")));
}

#[test]
fn of_two_files_the_first_is_used() {
    let node = TestNode::new();
    node.put("bridge.conf", unit("bridge.conf"));
    node.put("list.conflist", unit("list.conflist"));
    let chained = |pinned: Option<&str>| {
        test_node::installed(&node.root, Shape::Chained { pinned: pinned.map(test_node::name) })
    };
    node.settle(&chained(None));
    assert_eq!(
        without_names_and_versions(json(node.text("bridge.conflist").as_bytes())),
        without_names_and_versions(with_gybes_entry(&unit("bridge.conf.golden")))
    );
    for pinned in ["list.conflist", "list.conf"] {
        // The pinned file keeps the entry, and the problem is reported: the runtime reads the first file.
        let (file, by) = (test_node::name("list.conflist"), test_node::name("bridge.conf"));
        assert_eq!(node.pass(&chained(Some(pinned))).left.problems, [Problem::Preempted { file, by }]);
        assert!(node.pass(&chained(Some(pinned))).plan.changes.is_empty());
        assert_eq!(
            json(node.text("list.conflist").as_bytes()),
            with_gybes_entry(&unit("list.conflist.golden"))
        );
        assert_eq!(
            node.text("bridge.conf").as_bytes(),
            unit("bridge.conf"),
            "the file that had the entry before is restored"
        );
    }
    node.settle(&chained(Some("bridge.conflist")));
    assert_eq!(node.text("list.conflist").as_bytes(), unit("list.conflist"));
    let waits = node.pass(&chained(Some("never-created"))).left;
    assert_eq!(
        waits.problems,
        [Problem::WaitingFor { file: test_node::name("never-created"), by: "conf_name" }]
    );
}

#[test]
fn a_file_of_any_name_can_be_pinned() {
    let node = TestNode::new();
    node.put("undetectable.file", unit("list.conflist"));
    let pinned = Some(test_node::name("undetectable.file"));
    node.settle(&test_node::installed(&node.root, Shape::Chained { pinned }));
    assert_eq!(
        json(node.text("undetectable.file").as_bytes()),
        with_gybes_entry(&unit("list.conflist.golden"))
    );
}

#[test]
fn a_change_after_which_istio_cni_writes_again_makes_gybe_write_again() {
    let node = TestNode::new();
    node.put("10-list.conflist", unit("list.conflist"));
    let chained = test_node::chained(&node.root);
    node.settle(&chained);
    let good = node.text("10-list.conflist");
    let is_done = || node.pass(&chained).plan.is_done();
    assert!(is_done());
    node.put("05-other.conflist", unit("list.conflist"));
    assert!(!is_done(), "another file comes first");
    std::fs::remove_file(node.conf("05-other.conflist")).unwrap();
    node.pass(&chained);
    node.put("10-list.conflist", unit("list.conflist"));
    assert!(!is_done(), "the entry is missing");
    node.put("10-list.conflist", good.replace("kube-system", "other"));
    assert!(!is_done(), "the entry has another value");
    std::fs::remove_file(node.conf("10-list.conflist")).unwrap();
    assert!(!is_done(), "the file is gone");
    node.put("istio.conf", unit("istio-cni-prefixed.conf"));
    let standalone =
        test_node::installed(&node.root, Shape::Standalone { file: test_node::name("istio.conf") });
    let refused = node.pass(&standalone).left;
    assert!(refused.problems.contains(&Problem::NotOurs(test_node::name("istio.conf"))), "{refused:?}");
    assert!(refused.changes.is_empty(), "{refused:?}");
}

#[test]
fn files_of_other_projects_are_restored_byte_for_byte() {
    let ours = test_node::entry("info");
    let lists = [
        "linkerd/10-calico.conflist",
        "linkerd/10-calico-linkerd.conflist",
        "linkerd/10-calico-exp.conflist",
        "cni-plugins/chained-ptp-bandwidth.conflist",
        "cni-plugins/chained-bridge-bandwidth/network-chain-test.conflist",
        "install-e2e/pre/calico.conflist",
        "install-e2e/pre/nover_calico.conflist",
        "install-unit/list.conflist",
    ];
    for file in lists {
        let before = shared(file);
        assert!(network(FileFormat::List, &before, &[]).is_ok(), "{file}");
        let with = PluginChain::read(&before).unwrap().with(&ours, IstioEntry::Replace).unwrap();
        assert_eq!(PluginChain::read(&with).unwrap().without("gybe-cni").unwrap(), before, "{file}");
    }
    for file in ["cni-plugins/basic-ptp.json", "cni-plugins/basic-bridge/network-chain-test.json"] {
        let before = shared(file);
        assert!(network(FileFormat::Single, &before, &[]).is_ok(), "{file}");
        let list = listed(&before, &ours).unwrap();
        assert_eq!(
            PluginChain::read(&list).unwrap().unlisted("gybe-cni").as_deref(),
            Some(before.as_slice()),
            "{file}"
        );
    }
    assert_eq!(listed(&shared("linkerd/10-calico.conf"), &ours), Err(ConflistError::NoName));
    for file in ["linkerd/zero-byte-file", "linkerd/cni-no-plugins.json", "linkerd/cni-invalid-plugin.json"] {
        assert!(network(FileFormat::List, &shared(file), &[]).is_err(), "{file}");
    }
}

#[test]
fn an_older_template_is_filled_in_or_refused_by_name() {
    let read = |template: String| {
        let mut given = SettingsSources::default();
        given.files.insert("cni_network_config".into(), template);
        given.files.insert("log_level".into(), "debug".into());
        Settings::read(&given)
    };
    let template = text("install-unit/istio-cni.conf.template");
    let settings = read(template.replace("__KUBECONFIG_FILENAME__", "__KUBECONFIG_FILEPATH__")).unwrap();
    let conf = Value::Object(settings.options.conf.to_members());
    assert_eq!(conf["log_level"], "debug", "the placeholder __LOG_LEVEL__ has the configured value");
    for (template, why) in [
        (template, "kubernetes.kubeconfig is \"kubeconfig\", which must be an absolute path"),
        (text("linkerd/cni-src.json"), "is for the plugin \"linkerd-cni\", not \"gybe-cni\""),
    ] {
        let refused = read(template).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
}

/// Parses a kubeconfig with istio-cni's names of user and context, `istio-cni` and `istio-cni-context`, replaced by
/// Gybe's `gybe`.
fn kubeconfig(text: &str) -> Value {
    let text = text.replace("istio-cni-context", "gybe").replace("istio-cni", "gybe");
    serde_saphyr::from_str(&text).unwrap()
}

#[test]
fn a_kubeconfig_has_the_values_of_istio_cnis() {
    let ca = unit("kube-ca.crt");
    let with = Credentials { token: "service_account_token_string", ca: &ca };
    for (host, trust, file) in [
        ("10.96.0.1", ServerTrust::Ca("ca.crt".into()), "kubeconfig-tls"),
        ("10.96.0.1", ServerTrust::Any, "kubeconfig-skip-tls"),
        ("50.76.2.1", ServerTrust::Ca("ca.crt".into()), "kubeconfig-newhost"),
    ] {
        let api = ApiServer {
            host: host.into(),
            port: "443".into(),
            trust,
            service_account: "/nonexistent".into(),
        };
        let theirs = kubeconfig(&text(&format!("install-unit/{file}")));
        assert_eq!(kubeconfig(&render(&api, with)), theirs, "{file}");
    }
    for lacking in ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"] {
        let mut given = SettingsSources::default();
        given.files.insert("pod_source".into(), "api".into());
        for name in ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"] {
            let value = if name == lacking { "" } else { "10" };
            given.environment.insert(name.into(), value.into());
        }
        assert!(Settings::read(&given).unwrap_err().to_string().contains(lacking));
    }
}

/// With `ISTIO_OWNED_CNI_CONFIG` istio-cni copies the primary's chain into a file of its own that sorts first, so the
/// runtime keeps an old chain when the primary changes its file. Gybe's `shape: auto`, the default, neither changes nor
/// copies the primary's file where the runtime reads drop-ins.
#[test]
fn an_owned_conf_is_a_drop_in_here() {
    let mut given = SettingsSources::default();
    given.environment.insert("ISTIO_OWNED_CNI_CONFIG".into(), "true".into());
    assert_eq!(Settings::read(&given).unwrap().options.shape, ShapeSetting::Auto);
    for (file, network) in
        [("list.conflist", "dbnet"), ("install-e2e/pre/calico.conflist", "k8s-pod-network")]
    {
        let primary = if file.contains('/') { shared(file) } else { unit(file) };
        let node = TestNode::new();
        node.put("10-primary.conflist", &primary);
        node.settle(&test_node::installed(&node.root, ShapeSetting::Auto));
        let ours = format!("{network}/zz-gybe-cni.conf");
        assert_eq!(node.files().keys().cloned().collect::<Vec<_>>(), ["10-primary.conflist", ours.as_str()]);
        assert_eq!(node.text("10-primary.conflist").as_bytes(), primary);
        assert!(test_node::entry("info").has_same_value(node.text(&ours).as_bytes()), "{}", node.text(&ours));
        // The primary changes its chain, and the drop-in needs no update.
        let changed = String::from_utf8(primary).unwrap().replace("bridge", "other");
        node.put("10-primary.conflist", &changed);
        assert!(node.pass(&test_node::installed(&node.root, ShapeSetting::Auto)).plan.changes.is_empty());
        node.settle(&test_node::uninstalled(&node.root, PutBack::Nothing));
        assert_eq!(node.files().keys().cloned().collect::<Vec<_>>(), ["10-primary.conflist"]);
    }
}

const CALICO: (&str, &str) = ("calico.conflist", "10-calico.conflist-istioconfig");
const MINIKUBE: (&str, &str) = ("minikube_cni.conf", "minikube_cni.conflist.expected");

struct Case {
    /// Files of the directory `pre`, numbered in this order.
    files: &'static [&'static str],
    pinned: Option<&'static str>,
    /// The name of the file that has the entry in the end.
    becomes: &'static str,
    of: (&'static str, &'static str),
}

const fn case(
    files: &'static [&'static str],
    pinned: Option<&'static str>,
    becomes: &'static str,
    of: (&'static str, &'static str),
) -> Case {
    Case { files, pinned, becomes, of }
}

const BAD: &str = "bad_minikube_cni.conf";
const NOT_JSON: &str = "non_json.conf";
const NO_NAME: &str = "noname_calico.conflist";
const NO_PLUGINS: &str = "noplugins_calico.conflist";

const CASES: [Case; 12] = [
    case(&[CALICO.0], Some("00-calico.conflist"), "00-calico.conflist", CALICO),
    case(&[MINIKUBE.0], Some("00-minikube_cni.conf"), "00-minikube_cni.conflist", MINIKUBE),
    case(&[CALICO.0, MINIKUBE.0], None, "00-calico.conflist", CALICO),
    case(&[MINIKUBE.0, CALICO.0], None, "00-minikube_cni.conflist", MINIKUBE),
    case(&[NOT_JSON, MINIKUBE.0, CALICO.0], None, "01-minikube_cni.conflist", MINIKUBE),
    case(&[NOT_JSON, CALICO.0, MINIKUBE.0], None, "01-calico.conflist", CALICO),
    case(&[BAD, MINIKUBE.0, CALICO.0], None, "01-minikube_cni.conflist", MINIKUBE),
    case(&[BAD, CALICO.0, MINIKUBE.0], None, "01-calico.conflist", CALICO),
    case(&[NO_NAME, NO_PLUGINS, MINIKUBE.0, CALICO.0], None, "02-minikube_cni.conflist", MINIKUBE),
    case(&[NO_NAME, NO_PLUGINS, CALICO.0, MINIKUBE.0], None, "02-calico.conflist", CALICO),
    case(&[CALICO.0], Some("00-calico.conf"), "00-calico.conflist", CALICO),
    case(&[MINIKUBE.0], Some("00-minikube_cni.conflist"), "00-minikube_cni.conflist", MINIKUBE),
];

fn chained(node: &TestNode, pinned: Option<&str>) -> DesiredState {
    test_node::installed(&node.root, Shape::Chained { pinned: pinned.map(test_node::name) })
}

/// Installs, repairs and uninstalls; asserts at each step that every byte outside Gybe's entry is unchanged.
fn assert_install_to_uninstall(
    node: &TestNode,
    desired: &DesiredState,
    becomes: &str,
    (pre, golden): (&str, &str),
) {
    let before = node.files();
    node.settle(desired);
    let result = node.text(becomes);
    let expected_entry = with_gybes_entry(&shared(&format!("install-e2e/expected/{golden}")));
    assert_eq!(
        without_names_and_versions(json(result.as_bytes())),
        without_names_and_versions(expected_entry),
        "{becomes}"
    );
    let original = text(&format!("install-e2e/pre/{pre}"));
    let ours = test_node::entry("info");
    assert!(
        PluginChain::read(result.as_bytes())
            .unwrap()
            .entry("gybe-cni")
            .is_some_and(|text| ours.has_same_value(text))
    );
    if pre == CALICO.0 {
        let without = PluginChain::read(result.as_bytes()).unwrap().without("gybe-cni").unwrap();
        assert_eq!(String::from_utf8(without).unwrap(), original, "no byte outside the entry changed");
    } else {
        assert!(result.contains(original.trim()), "the plugin's own text is untouched");
        let name = |bytes: &str| json(bytes.as_bytes())["name"].clone();
        assert_eq!(name(&result), name(&original), "the network keeps its name");
    }
    // Another program removes the entry, and the next pass restores it.
    node.put(becomes, PluginChain::read(result.as_bytes()).unwrap().without("gybe-cni").unwrap());
    node.settle(desired);
    assert_eq!(node.text(becomes), result);
    let DesiredState::Uninstalled(mut uninstall) = test_node::uninstalled(&node.root, PutBack::Nothing)
    else {
        unreachable!()
    };
    if let DesiredState::Installed(install) = desired
        && let Some(Shape::Chained { pinned }) = install.shape.fixed()
    {
        uninstall.pinned.clone_from(pinned);
    }
    node.settle(&DesiredState::Uninstalled(uninstall));
    assert_eq!(node.files(), before, "{becomes}");
    assert!(node.programs().is_empty());
}

#[test]
fn every_directory_ends_as_with_istio_cni_and_is_restored() {
    for case in CASES {
        let node = TestNode::new();
        for (n, file) in case.files.iter().enumerate() {
            node.put(&format!("0{n}-{file}"), shared(&format!("install-e2e/pre/{file}")));
        }
        assert_install_to_uninstall(&node, &chained(&node, case.pinned), case.becomes, case.of);
    }
}

#[test]
fn the_entry_waits_for_a_later_file() {
    for (pinned, appears, becomes) in [
        (Some("missing_initially.conf"), "missing_initially.conf", "missing_initially.conflist"),
        (None, "calico.conflist", "calico.conflist"),
    ] {
        let node = TestNode::new();
        let desired = chained(&node, pinned);
        let waiting = node.pass(&desired).left;
        assert!(!waiting.is_done() && waiting.changes.is_empty());
        let waits = |problem: &Problem| matches!(problem, Problem::Waiting | Problem::WaitingFor { .. });
        assert!(waiting.problems.iter().all(waits), "{:?}", waiting.problems);
        assert!(node.files().is_empty(), "Gybe does not write a primary's file");
        node.put(appears, shared("install-e2e/pre/calico.conflist"));
        assert_install_to_uninstall(&node, &desired, becomes, CALICO);
    }
}

#[test]
fn standalone_is_a_file_of_its_own() {
    for file in ["YYY-gybe-cni.conf", "user-defined.conf"] {
        let node = TestNode::new();
        node.settle(&test_node::installed(&node.root, Shape::Standalone { file: test_node::name(file) }));
        let ours = json(node.text(file).as_bytes());
        let theirs = json(&shared("install-e2e/expected/YYY-istio-cni.conf"));
        assert_eq!((&ours["cniVersion"], &ours["name"]), (&theirs["cniVersion"], &theirs["name"]));
        assert_eq!(ours["type"], Value::from("gybe-cni"));
        node.settle(&test_node::uninstalled(&node.root, PutBack::Nothing));
        assert!(node.files().is_empty() && node.programs().is_empty());
    }
}
