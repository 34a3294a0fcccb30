//! Reference conf files, templates and kubeconfigs of istio-cni and other projects, read and written by the
//! installer's functions.

use crate::test_node::TestNode;
use crate::{json, shared, test_node, text, with_gybes_entry, without_names_and_versions};
use gybe_installer::agent::kubeconfig::{Credentials, render};
use gybe_installer::host::conflist::entry::Entry;
use gybe_installer::host::conflist::{ConflistError, IstioEntry, PluginChain};
use gybe_installer::host::conflist::{listed, unlisted};
use gybe_installer::host::desired::{PutBack, Shape};
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
        assert_eq!(unlisted(&list, "gybe-cni").as_deref(), Some(before.as_slice()), "{file}");
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
/// runtime keeps an old chain when the primary changes its file. Gybe refuses the setting and names the shape
/// `dropin`, which neither changes nor copies the primary's file.
#[test]
fn an_owned_conf_is_a_drop_in_here() {
    let mut given = SettingsSources::default();
    given.environment.insert("ISTIO_OWNED_CNI_CONFIG".into(), "true".into());
    assert!(Settings::read(&given).unwrap_err().to_string().contains("set `shape: dropin`"));
    for (file, network) in
        [("list.conflist", "dbnet"), ("install-e2e/pre/calico.conflist", "k8s-pod-network")]
    {
        let primary = if file.contains('/') { shared(file) } else { unit(file) };
        let node = TestNode::new();
        node.put("10-primary.conflist", &primary);
        node.settle(&test_node::installed(&node.root, Shape::DropIn));
        let ours = format!("{network}/zz-gybe-cni.conf");
        assert_eq!(node.files().keys().cloned().collect::<Vec<_>>(), ["10-primary.conflist", ours.as_str()]);
        assert_eq!(node.text("10-primary.conflist").as_bytes(), primary);
        assert!(test_node::entry("info").has_same_value(node.text(&ours).as_bytes()), "{}", node.text(&ours));
        // The primary changes its chain, and the drop-in needs no update.
        let changed = String::from_utf8(primary).unwrap().replace("bridge", "other");
        node.put("10-primary.conflist", &changed);
        assert!(node.pass(&test_node::installed(&node.root, Shape::DropIn)).plan.changes.is_empty());
        node.settle(&test_node::uninstalled(&node.root, PutBack::Nothing));
        assert_eq!(node.files().keys().cloned().collect::<Vec<_>>(), ["10-primary.conflist"]);
    }
}
