//! Functions that change conf files change only Gybe's entry; every other byte of another owner's file stays.

use gybe_installer::host::conflist::entry::{Entry, Layout};
use gybe_installer::host::conflist::{ConflistError, ISTIO, IstioEntry, PluginChain};
use gybe_installer::host::conflist::{listed, unlisted};
use proptest::prelude::*;
use serde_json::{Value, json};

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
fn istio_cnis_entry_is_replaced_in_one_write_except_in_ambient_mode() {
    let file = br#"{"plugins": [{"type":"a"}, {"type":"istio-cni","ambient_enabled":false}]}"#;
    assert_eq!(PluginChain::read(&with(file)).unwrap().plugins(), ["a", "gybe-cni"]);
    let stays = PluginChain::read(file).unwrap().with(&entry(), IstioEntry::Keep).unwrap();
    assert_eq!(PluginChain::read(&stays).unwrap().plugins(), ["a", ISTIO, "gybe-cni"]);
    let ambient = br#"{"plugins": [{"type":"a"}, {"type":"istio-cni","ambient_enabled":true}]}"#;
    let refused = PluginChain::read(ambient).unwrap().with(&entry(), IstioEntry::Replace);
    assert_eq!(refused, Err(ConflistError::Ambient));
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
        assert_eq!(unlisted(&list, "gybe-cni").as_deref(), Some(single.as_bytes()));
        assert_eq!(with(&list), list);
        let reformatted = serde_json::to_vec(&parsed).unwrap();
        assert_eq!(unlisted(&reformatted, "gybe-cni"), None, "a reformatted list is not converted back");
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
        let printed = entry().print(&Layout::OneLine);
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
        prop_assert_eq!(unlisted(&list, "gybe-cni"), Some(single.into_bytes()));
    }
}
