//! Functions that change conf files change only Gybe's entry, in each shape: chained, standalone and drop-in; files
//! to which the entry is not added.

use crate::chained::{LIST, SINGLE};
use crate::test_node::{TestNode, chained, install, installed, name, uninstalled};
use gybe_installer::host::conflist::entry::{Entry, EntryLayout};
use gybe_installer::host::conflist::{ConflistError, ISTIO, IstioEntry, PluginChain, listed};
use gybe_installer::host::desired::{Confirmed, DesiredState, Install, PutBack, Shape};
use gybe_installer::host::problem::Problem;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

fn entry() -> Entry {
    Entry::from_value(&json!({
        "type": "gybe-cni", "log_level": "info", "exclude_namespaces": ["kube-system"],
        "capabilities": { "io.kubernetes.cri.pod-annotations": true },
    }))
    .unwrap()
}

fn with(file: &[u8]) -> Vec<u8> {
    PluginChain::read(file).unwrap().with(&entry(), IstioEntry::Replace).unwrap()
}

fn without(file: &[u8]) -> Vec<u8> {
    PluginChain::read(file).unwrap().without("gybe-cni").unwrap()
}

const REAL: [&str; 6] = [
    "{\n  \"name\": \"k8s-pod-network\",\n  \"cniVersion\": \"0.3.1\",\n  \"plugins\": [\n    {\n      \"type\": \"calico\",\n      \"mtu\": 0\n    },\n    {\n      \"type\": \"portmap\",\n      \"snat\": true,\n      \"capabilities\": {\"portMappings\": true}\n    }\n  ]\n}\n",
    "{\n\t\"cniVersion\": \"0.3.1\",\n\t\"name\": \"aws-cni\",\n\t\"plugins\": [{\n\t\t\"name\": \"aws-cni\",\n\t\t\"type\": \"aws-cni\"\n\t}, {\n\t\t\"type\": \"egress-cni\"\n\t}]\n}",
    "{\"cniVersion\":\"0.3.1\",\"name\":\"kindnet\",\"plugins\":[{\"type\":\"ptp\",\"mtu\":1500},{\"type\":\"portmap\"}]}\n",
    "{\r\n  \"name\": \"cbr0\",\r\n  \"plugins\": [\r\n    { \"type\": \"flannel\" } ,\r\n    { \"type\": \"portmap\" }\r\n  ]\r\n}\r\n",
    "\n{\n  \"name\": \"cilium\",\n  \"plugins\": [\n    {\n       \"type\": \"cilium-cni\",\n       \"big\": 18446744073709551616,\n       \"x\": 1.50\n    }\n  ], \"last\": \"\\u0041\"}\n\n",
    "{ \"name\": \"n\", \"plugins\" : [ {\"type\":\"a\"} , {\"type\":\"b\"} ] }",
];

#[test]
fn the_entry_is_formatted_like_the_other_plugins() {
    let text = String::from_utf8(with(REAL[0].as_bytes())).unwrap();
    assert!(
        text.contains("\n    },\n    {\n      \"capabilities\": {\n        \"io.kubernetes.cri.pod-annotations\": true\n      },\n"),
        "{text}"
    );
    assert!(text.ends_with("\n      \"type\": \"gybe-cni\"\n    }\n  ]\n}\n"), "{text}");
    let golang = String::from_utf8(with(REAL[1].as_bytes())).unwrap();
    assert!(golang.contains("\n\t}, {\n\t\t\"capabilities\""), "{golang}");
    let compact = String::from_utf8(with(REAL[2].as_bytes())).unwrap();
    assert!(compact.ends_with("\"type\":\"gybe-cni\"}]}\n") && compact.lines().count() == 1, "{compact}");
    let windows = String::from_utf8(with(REAL[3].as_bytes())).unwrap();
    assert!(!windows.replace("\r\n", "").contains('\n'), "{windows}");
}

#[test]
fn f33_inserting_and_removing_the_entry_restores_every_byte() {
    for file in REAL {
        let inside = with(file.as_bytes());
        assert_eq!(PluginChain::read(&inside).unwrap().plugins().last(), Some(&"gybe-cni"));
        assert_eq!(with(&inside), inside, "a second time changes nothing");
        assert_eq!(String::from_utf8(without(&inside)).unwrap(), file);
    }
}

#[test]
fn an_equal_entry_in_another_layout_stays_unchanged() {
    let file = br#"{"plugins":[{"type":"a"},{ "exclude_namespaces":["kube-system"],"type":"gybe-cni",
        "log_level":"inf\u006f","capabilities":{"io.kubernetes.cri.pod-annotations":true} }]}"#;
    assert_eq!(with(file), file);
}

#[test]
fn f30_an_old_entry_is_replaced_in_place_and_duplicates_are_removed() {
    let file =
        br#"{"plugins": [{"type":"gybe-cni"}, {"type":"a"}, {"type":"gybe-cni","log_level":"debug"}]}"#;
    let inside = with(file);
    assert_eq!(PluginChain::read(&inside).unwrap().plugins(), ["a", "gybe-cni"]);
    assert_eq!(without(&inside), br#"{"plugins": [{"type":"a"}]}"#);
}

#[test]
fn an_entry_that_is_not_last_becomes_last() {
    let file = br#"{"plugins": [{"type":"a"}, {"type":"gybe-cni"}, {"type":"b"}]}"#;
    assert_eq!(PluginChain::read(&with(file)).unwrap().plugins(), ["a", "b", "gybe-cni"]);
}

#[test]
fn istio_cnis_entry_is_replaced_in_one_write_in_ambient_mode_only_by_an_entry_with_it() {
    let file = br#"{"plugins": [{"type":"a"}, {"type":"istio-cni","ambient_enabled":false}]}"#;
    assert_eq!(PluginChain::read(&with(file)).unwrap().plugins(), ["a", "gybe-cni"]);
    let stays = PluginChain::read(file).unwrap().with(&entry(), IstioEntry::Keep).unwrap();
    assert_eq!(PluginChain::read(&stays).unwrap().plugins(), ["a", ISTIO, "gybe-cni"]);
    let ambient = br#"{"plugins": [{"type":"a"}, {"type":"istio-cni","ambient_enabled":true}]}"#;
    let refused = PluginChain::read(ambient).unwrap().with(&entry(), IstioEntry::Replace);
    assert_eq!(refused, Err(ConflistError::Ambient));
    let ours = Entry::from_value(&json!({ "type": "gybe-cni", "ambient": { "ipv6": true } })).unwrap();
    let replaced = PluginChain::read(ambient).unwrap().with(&ours, IstioEntry::Replace).unwrap();
    assert_eq!(PluginChain::read(&replaced).unwrap().plugins(), ["a", "gybe-cni"]);
}

#[test]
fn f06_a_broken_file_is_refused_at_every_prefix() {
    for file in REAL {
        let inside = with(file.as_bytes());
        for end in 0..inside.trim_ascii_end().len() {
            assert!(PluginChain::read(&inside[..end]).is_err(), "{end} bytes");
        }
    }
}

#[test]
fn gybes_entry_is_not_removed_from_a_list_without_other_plugins() {
    let refused = PluginChain::read(br#"{"plugins":[{"type":"gybe-cni"}]}"#).unwrap().without("gybe-cni");
    assert_eq!(refused, Err(ConflistError::NothingElse("gybe-cni".into())));
}

#[test]
fn f33_a_single_conf_becomes_a_list_and_is_restored_byte_for_byte() {
    for single in [
        "{\n  \"name\": \"rkt\",\n  \"mtu\": 1460,\n  \"type\": \"bridge\"\n}\n",
        "\t{\"cniVersion\":\"0.2.0\",\"name\":\"a\\u0062\",\"type\":\"ptp\"} \n",
        "{\r\n\t\"type\":\"x\",\r\n\t\"name\":\"y\"}",
    ] {
        let list = listed(single.as_bytes(), &entry()).unwrap();
        let conf: Value = serde_json::from_str(single).unwrap();
        let parsed: Value = serde_json::from_slice(&list).unwrap();
        assert_eq!((&parsed["name"], &parsed["cniVersion"]), (&conf["name"], &conf["cniVersion"]));
        assert_eq!(parsed["plugins"][0], conf);
        assert_eq!(
            PluginChain::read(&list).unwrap().unlisted("gybe-cni").as_deref(),
            Some(single.as_bytes())
        );
        assert_eq!(with(&list), list);
        let reformatted = serde_json::to_vec(&parsed).unwrap();
        assert_eq!(
            PluginChain::read(&reformatted).unwrap().unlisted("gybe-cni"),
            None,
            "a reformatted list is not converted back"
        );
    }
    assert_eq!(listed(br#"{"type":"bridge"}"#, &entry()), Err(ConflistError::NoName));
}

/// Returns a strategy for arbitrary JSON values, as in other plugins' entries.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z\"\\\\]{0,5}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn plugin() -> impl Strategy<Value = Value> {
    ("[a-z-]{1,9}", prop::option::of(anything())).prop_map(|(kind, rest)| match rest {
        Some(rest) => json!({ "type": kind, "rest": rest }),
        None => json!({ "type": kind }),
    })
}

/// Inserts pseudo-random white space wherever JSON allows it.
fn spread(text: &str, mut seed: u64) -> String {
    let (mut out, mut quoted, mut escaped) = (String::new(), false, false);
    for letter in text.chars() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let blank = ["", "", " ", "\n  ", "\t", "\r\n"][usize::try_from(seed >> 33).unwrap() % 6];
        let structural = !quoted && "{}[],:".contains(letter);
        if structural {
            out.push_str(blank);
        }
        out.push(letter);
        if structural {
            out.push_str(blank);
        }
        quoted ^= letter == '"' && !escaped;
        escaped = letter == '\\' && !escaped;
    }
    out
}

fn file() -> impl Strategy<Value = String> {
    let list = (prop::collection::vec(plugin(), 1..5), anything());
    (list, any::<u64>(), 0..3u8).prop_map(|((plugins, other), seed, style)| {
        let value = json!({ "cniVersion": "1.0.0", "name": "net", "plugins": plugins, "zz": other });
        match style {
            0 => serde_json::to_string_pretty(&value).unwrap(),
            1 => value.to_string(),
            _ => spread(&value.to_string(), seed),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_list_is_restored_byte_for_byte(file in file()) {
        let inside = with(file.as_bytes());
        prop_assert_eq!(with(&inside), inside.clone());
        prop_assert_eq!(String::from_utf8(without(&inside)).unwrap(), file.clone());

        let mut expected: Value = serde_json::from_str(&file).unwrap();
        let printed = entry().print(&EntryLayout::OneLine);
        expected["plugins"].as_array_mut().unwrap().push(serde_json::from_slice(&printed).unwrap());
        prop_assert_eq!(serde_json::from_slice::<Value>(&inside).unwrap(), expected);
    }

    #[test]
    fn from_a_reformatted_file_only_gybes_entry_is_removed(file in file(), seed: u64) {
        let inside: Value = serde_json::from_slice(&with(file.as_bytes())).unwrap();
        let again = spread(&inside.to_string(), seed);
        prop_assert_eq!(with(again.as_bytes()), again.as_bytes());
        let out: Value = serde_json::from_slice(&without(again.as_bytes())).unwrap();
        prop_assert_eq!(out, serde_json::from_str::<Value>(&file).unwrap());
    }

    #[test]
    fn f33_any_single_conf_is_restored_byte_for_byte(rest in anything(), seed: u64) {
        let single = spread(&json!({ "name": "n", "cniVersion": "0.4.0", "type": "x", "rest": rest }).to_string(), seed);
        let list = listed(single.as_bytes(), &entry()).unwrap();
        prop_assert_eq!(PluginChain::read(&list).unwrap().unlisted("gybe-cni"), Some(single.into_bytes()));
    }
}

#[test]
fn standalone_writes_a_network_of_its_own_and_no_other_file() {
    let node = TestNode::with(&[("10-calico.conflist", LIST)]);
    node.settle(&chained(&node.root));
    let shape = Shape::Standalone { file: name("YYY-gybe-cni.conf") };
    node.settle(&installed(&node.root, shape.clone()));
    assert_eq!(node.text("10-calico.conflist"), LIST, "no longer chained");
    let ours: Value = serde_json::from_str(&node.text("YYY-gybe-cni.conf")).unwrap();
    assert_eq!((&ours["type"], &ours["name"]), (&"gybe-cni".into(), &"istio-cni".into()));
    let mode = fs::metadata(node.conf("YYY-gybe-cni.conf")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    node.put("YYY-gybe-cni.conf", SINGLE);
    let pass = node.pass(&installed(&node.root, shape.clone()));
    assert_eq!(pass.left.problems, [Problem::NotOurs(name("YYY-gybe-cni.conf"))]);
    assert!(!pass.left.judgement.is_redirected());
    fs::remove_file(node.conf("YYY-gybe-cni.conf")).unwrap();
    node.settle(&installed(&node.root, shape));
    node.settle(&uninstalled(&node.root, PutBack::Nothing));
    assert_eq!(node.files().into_keys().collect::<Vec<_>>(), ["10-calico.conflist"]);
}

#[test]
fn a_drop_in_leaves_the_primarys_file_unchanged_and_moves_with_its_network() {
    let node = TestNode::with(&[("10-calico.conflist", LIST)]);
    let desired = installed(&node.root, Shape::DropIn);
    node.settle(&chained(&node.root));
    node.settle(&desired);
    assert_eq!(node.chain().1, ["calico", "portmap", "gybe-cni"]);
    assert_eq!(node.text("10-calico.conflist"), LIST);
    node.put("05-new.conflist", LIST.replace("k8s-pod-network", "new"));
    node.settle(&desired);
    assert!(node.files().contains_key("new/zz-gybe-cni.conf"));
    assert!(!node.conf("k8s-pod-network").exists());
    fs::remove_file(node.conf("05-new.conflist")).unwrap();
    node.settle(&desired);
    node.settle(&uninstalled(&node.root, PutBack::Nothing));
    assert_eq!(node.files().into_keys().collect::<Vec<_>>(), ["10-calico.conflist"]);
    for content in
        [SINGLE.to_owned(), LIST.replace("\"cniVersion\"", "\"loadOnlyInlinedPlugins\":true,\"cniVersion\"")]
    {
        let file = if content == SINGLE { "00-a.conf" } else { "00-a.conflist" };
        let node = TestNode::with(&[(file, &content)]);
        assert_eq!(node.pass(&desired).left.problems, [Problem::NoDropIns(name(file))]);
    }
}

#[test]
fn a08_a_link_is_read_as_the_runtime_reads_it_and_never_written_through() {
    let node = TestNode::new();
    let elsewhere = node.root.join("elsewhere");
    fs::write(&elsewhere, LIST).unwrap();
    symlink(&elsewhere, node.conf("10-calico.conflist")).unwrap();
    let pass = node.pass(&chained(&node.root));
    assert_eq!(pass.left.problems, [Problem::Link(name("10-calico.conflist"))]);
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), LIST);
    assert!(node.conf("10-calico.conflist").is_symlink());
    // A link under Gybe's temporary file name is not followed.
    let node = TestNode::with(&[("10-calico.conflist", LIST)]);
    fs::write(&elsewhere, "precious").ok();
    symlink("/dev/null", node.conf(".gybe.tmp")).unwrap();
    symlink("/dev/null", node.root.join("bin/gybe-cni")).unwrap();
    node.settle(&chained(&node.root));
    assert!(!node.root.join("bin/gybe-cni").is_symlink());
}

#[test]
fn a_file_that_is_too_large_to_read_stops_chaining() {
    let large = LIST.replace("\"cniVersion\"", &format!("\"x\":\"{}\",\"cniVersion\"", "x".repeat(1 << 20)));
    let node = TestNode::with(&[("10-calico.conflist", LIST), ("05-large.conflist", &large)]);
    let length = large.len() as u64;
    let pass = node.pass(&chained(&node.root));
    assert_eq!(pass.left.problems, [Problem::TooLarge { file: name("05-large.conflist"), length }]);
    assert!(!pass.left.is_done());
    assert_eq!(node.text("10-calico.conflist"), LIST);
    // If it sorts after the chosen file, it is ignored.
    let node = TestNode::with(&[("10-calico.conflist", LIST), ("15-large.conflist", &large)]);
    node.settle(&chained(&node.root));
}

#[test]
fn f37_without_the_primarys_plugins_the_program_directory_is_unconfirmed() {
    let node = TestNode::with(&[("10-calico.conflist", LIST)]);
    node.settle(&chained(&node.root));
    for plugin in ["calico", "portmap"] {
        fs::remove_file(node.root.join("bin").join(plugin)).unwrap();
    }
    for shape in [Shape::Chained { pinned: None }, Shape::DropIn] {
        let pass = node.pass(&installed(&node.root, shape));
        let plugins = vec!["calico".to_owned(), "portmap".to_owned()];
        let unconfirmed = Problem::PluginDirUnconfirmed { file: name("10-calico.conflist"), plugins };
        assert!(pass.left.problems.contains(&unconfirmed), "{:?}", pass.left.problems);
        assert!(!pass.left.judgement.is_redirected());
    }
    assert!(node.text("10-calico.conflist").contains("gybe-cni"), "the existing entry stays");
    node.put("10-calico.conflist", LIST);
    fs::remove_dir_all(node.conf("k8s-pod-network")).ok();
    for shape in [Shape::Chained { pinned: None }, Shape::DropIn] {
        node.pass(&installed(&node.root, shape));
        assert_eq!(node.files().into_keys().collect::<Vec<_>>(), ["10-calico.conflist"]);
        assert_eq!(node.text("10-calico.conflist"), LIST, "no entry is added to an unconfirmed directory");
    }
    let confirmed = Install { confirmed: Confirmed::Yes, ..install(&node.root, chain(), "1") };
    assert!(node.pass(&DesiredState::Installed(confirmed)).left.judgement.is_redirected());
    node.put("10-calico.conflist", LIST);
    node.root.write_programs("bin", ["portmap"]);
    assert!(!node.pass(&chained(&node.root)).left.judgement.is_redirected(), "a pod needs both");
    assert!(node.text("10-calico.conflist").contains("gybe-cni"), "the directory is the right one");
    node.root.write_programs("bin", ["calico"]);
    assert!(node.pass(&chained(&node.root)).left.judgement.is_redirected());
}

/// The program of a drop-in is found, and those of the file are not.
#[test]
fn f37_another_owners_drop_in_does_not_confirm_the_program_directory() {
    let node = TestNode::with(&[("10-calico.conflist", LIST)]);
    for plugin in ["calico", "portmap"] {
        fs::remove_file(node.root.join("bin").join(plugin)).unwrap();
    }
    node.root.write_programs("bin", ["tuning"]);
    fs::create_dir(node.conf("k8s-pod-network")).unwrap();
    node.put("k8s-pod-network/50-tuning.conf", r#"{"type":"tuning"}"#);
    assert!(!node.pass(&chained(&node.root)).left.judgement.is_redirected());
    assert_eq!(node.text("10-calico.conflist"), LIST);
}

fn chain() -> Shape {
    Shape::Chained { pinned: None }
}

#[test]
fn f06_no_entry_is_written_after_an_unreadable_file_and_the_node_is_not_ready() {
    for (first, end) in [("05-link.conflist", None), ("05-pipe.conflist", Some(()))] {
        let node = TestNode::with(&[("10-calico.conflist", LIST)]);
        match end {
            // A link whose target is not mounted in the agent's container.
            None => symlink("/nowhere/05.conflist", node.conf(first)).unwrap(),
            Some(()) => nix::unistd::mkfifo(&node.conf(first), nix::sys::stat::Mode::S_IRWXU).unwrap(),
        }
        let left = node.pass(&chained(&node.root)).left;
        assert!(
            matches!(&left.problems[..], [Problem::UnreadableFirst(it)] if it.file == name(first)),
            "{left:?}"
        );
        assert!(!left.judgement.is_redirected());
        assert_eq!(node.text("10-calico.conflist"), LIST);
        fs::remove_file(node.conf(first)).unwrap();
        node.settle(&chained(&node.root));
    }
}

#[test]
fn f06_a_drop_in_or_its_directory_that_cannot_be_read_leaves_the_network_alone() {
    let node = TestNode::with(&[("10-calico.conflist", LIST)]);
    fs::create_dir(node.conf("k8s-pod-network")).unwrap();
    symlink("/nowhere/x", node.conf("k8s-pod-network/50-x.conf")).unwrap();
    let unread = || {
        let left = node.pass(&chained(&node.root)).left;
        assert!(matches!(&left.problems[..], [Problem::UnreadableFirst(_)]), "{left:?}");
        assert_eq!(node.text("10-calico.conflist"), LIST);
    };
    unread();
    fs::remove_dir_all(node.conf("k8s-pod-network")).unwrap();
    symlink("/nowhere/directory", node.conf("k8s-pod-network")).unwrap();
    unread();
    fs::remove_file(node.conf("k8s-pod-network")).unwrap();
    symlink(node.root.join("image"), node.conf("k8s-pod-network")).unwrap();
    node.settle(&chained(&node.root));
}
