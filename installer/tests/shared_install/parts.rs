//! Table B: the parts of an installer, and the conf files of other projects.

use gybe_installer::install::change::Problem;
use gybe_installer::install::conflist::convert::{listed, unlisted};
use gybe_installer::install::conflist::{Chain, ConflistError, Istio};
use gybe_installer::install::entry::Entry;
use gybe_installer::install::loads::{Form, network};
use gybe_installer::install::network_config::{Facts, TemplateError, entry};
use gybe_installer::install::wanted::Shape;

use crate::ground::Ground;
use crate::{json, less, shared, text, wants, with_ours};

fn unit(file: &str) -> Vec<u8> {
    shared(&format!("install-unit/{file}"))
}

#[test]
fn our_entry_goes_where_theirs_went() {
    let ours = wants::entry("info");
    let single = listed(&unit("bridge.conf"), &ours).unwrap();
    assert_eq!(less(json(&single)), less(with_ours(&unit("bridge.conf.golden"))));
    assert_eq!(json(&single)["name"], "dbnet");
    assert_eq!(json(&single)["cniVersion"], "0.4.0");
    for file in ["list.conflist", "list-with-istio.conflist"] {
        let before = unit(file);
        let with = Chain::read(&before).unwrap().with(&ours, Istio::GivesWay).unwrap();
        assert_eq!(json(&with), with_ours(&unit(&format!("{file}.golden"))), "{file}");
    }
    assert_eq!(Chain::read(&unit("invalid-map.conflist")).unwrap_err(), ConflistError::NoPlugins);
    assert_eq!(Chain::read(&unit("invalid-arr.conflist")).unwrap_err(), ConflistError::NoPlugins);
    assert!(Entry::parse(&unit("invalid-arr.conflist")).is_err());
    let without = Chain::read(&unit("list-with-istio.conflist")).unwrap().without("istio-cni").unwrap();
    assert_eq!(json(&without), json(&unit("list-no-istio.conflist")));
}

#[test]
fn a_directory_with_both_gives_the_first() {
    let ground = Ground::new();
    ground.put("bridge.conf", unit("bridge.conf"));
    ground.put("list.conflist", unit("list.conflist"));
    let chained = |pinned: Option<&str>| {
        wants::installed(&ground.root, Shape::Chained { pinned: pinned.map(wants::name) })
    };
    ground.settle(&chained(None));
    assert_eq!(
        less(json(ground.text("bridge.conflist").as_bytes())),
        less(with_ours(&unit("bridge.conf.golden")))
    );
    for pinned in ["list.conflist", "list.conf"] {
        ground.settle(&chained(Some(pinned)));
        assert_eq!(json(ground.text("list.conflist").as_bytes()), with_ours(&unit("list.conflist.golden")));
        assert_eq!(
            ground.text("bridge.conf").as_bytes(),
            unit("bridge.conf"),
            "what was pinned before is as it was"
        );
    }
    ground.settle(&chained(Some("bridge.conflist")));
    assert_eq!(ground.text("list.conflist").as_bytes(), unit("list.conflist"));
    let waits = ground.pass(&chained(Some("never-created"))).left;
    assert_eq!(waits.problems, [Problem::WaitingFor(wants::name("never-created"))]);
}

#[test]
fn a_file_of_any_name_can_be_pinned() {
    let ground = Ground::new();
    ground.put("undetectable.file", unit("list.conflist"));
    let pinned = Some(wants::name("undetectable.file"));
    ground.settle(&wants::installed(&ground.root, Shape::Chained { pinned }));
    assert_eq!(json(ground.text("undetectable.file").as_bytes()), with_ours(&unit("list.conflist.golden")));
}

#[test]
fn what_makes_them_write_again_makes_us_too() {
    let ground = Ground::new();
    ground.put("10-list.conflist", unit("list.conflist"));
    let chained = wants::chained(&ground.root);
    ground.settle(&chained);
    let good = ground.text("10-list.conflist");
    let is_done = || ground.pass(&chained).plan.is_done();
    assert!(is_done());
    ground.put("05-other.conflist", unit("list.conflist"));
    assert!(!is_done(), "another file comes first");
    std::fs::remove_file(ground.conf("05-other.conflist")).unwrap();
    ground.pass(&chained);
    ground.put("10-list.conflist", unit("list.conflist"));
    assert!(!is_done(), "the entry is missing");
    ground.put("10-list.conflist", good.replace("kube-system", "other"));
    assert!(!is_done(), "the entry says something else");
    std::fs::remove_file(ground.conf("10-list.conflist")).unwrap();
    assert!(!is_done(), "the file is gone");
    ground.put("istio.conf", unit("istio-cni-prefixed.conf"));
    let standalone = wants::installed(&ground.root, Shape::Standalone { file: wants::name("istio.conf") });
    let refused = ground.pass(&standalone).left;
    assert_eq!(refused.problems, [Problem::NotOurs(wants::name("istio.conf"))]);
}

#[test]
fn files_of_other_projects_come_back_byte_for_byte() {
    let ours = wants::entry("info");
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
        assert!(network(Form::List, &before, &[]).is_ok(), "{file}");
        let with = Chain::read(&before).unwrap().with(&ours, Istio::GivesWay).unwrap();
        assert_eq!(Chain::read(&with).unwrap().without("gybe-cni").unwrap(), before, "{file}");
    }
    for file in ["cni-plugins/basic-ptp.json", "cni-plugins/basic-bridge/network-chain-test.json"] {
        let before = shared(file);
        assert!(network(Form::Single, &before, &[]).is_ok(), "{file}");
        let list = listed(&before, &ours).unwrap();
        assert_eq!(unlisted(&list, "gybe-cni").as_deref(), Some(before.as_slice()), "{file}");
    }
    assert_eq!(listed(&shared("linkerd/10-calico.conf"), &ours), Err(ConflistError::NoName));
    for file in ["linkerd/zero-byte-file", "linkerd/cni-no-plugins.json", "linkerd/cni-invalid-plugin.json"] {
        assert!(network(Form::List, &shared(file), &[]).is_err(), "{file}");
    }
}

#[test]
fn an_older_template_is_filled_in_or_refused_by_name() {
    let facts = Facts { log_level: "debug".into(), kubeconfig_name: "kc".into(), ..Facts::default() };
    let filled = entry(&text("install-unit/istio-cni.conf.template"), &facts, "gybe-cni").unwrap();
    let want = r#"{"type":"gybe-cni","plugin_log_level":"debug","capabilities":{"io.kubernetes.cri.pod-annotations":true},
        "kubernetes":{"kubeconfig":"kc","cni_bin_dir":"/path/cni/bin"}}"#;
    assert!(filled.says_the_same(want.as_bytes()), "{filled:?}");
    let foreign = entry(&text("linkerd/cni-src.json"), &facts, "gybe-cni");
    assert!(matches!(foreign, Err(TemplateError::Foreign { .. })));
}
