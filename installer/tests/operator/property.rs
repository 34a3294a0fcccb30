//! F33: for any conf file of a primary, install and then uninstall restores every byte.

use crate::node::Node;
use proptest::prelude::*;

/// Returns white space as hand-written and generated files have it.
fn blanks() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", " ", "\n", "\n  ", "\r\n\t", "\n\n    "]).prop_map(str::to_owned)
}

/// Returns a member whose spelling a JSON parser does not preserve: numbers, escapes, duplicate keys.
fn member() -> impl Strategy<Value = String> {
    let spellings = vec![
        "\"mtu\":1500",
        "\"big\":18446744073709551616",
        "\"x\" : 1.50",
        "\"a\\u0062\":\"\\u0041\\/\"",
        "\"n\":null",
    ];
    prop::sample::select(spellings).prop_map(str::to_owned)
}

fn plugin() -> impl Strategy<Value = String> {
    (blanks(), prop::collection::vec(member(), 0..3), blanks()).prop_map(|(before, members, after)| {
        let members: String = members.iter().map(|member| format!(",{before}{member}")).collect();
        format!("{{{before}\"type\":\"bridge\"{members}{after}}}")
    })
}

fn list() -> impl Strategy<Value = String> {
    (blanks(), prop::collection::vec(plugin(), 1..4), blanks(), blanks()).prop_map(|(a, plugins, b, c)| {
        let plugins = plugins.join(&format!("{b},{a}"));
        format!("{{{a}\"name\":\"net\",{b}\"cniVersion\":\"0.3.1\",{c}\"plugins\":[{a}{plugins}{b}]{c}}}{a}")
    })
}

fn file() -> impl Strategy<Value = (&'static str, String)> {
    let single = || plugin().prop_map(|plugin| plugin.replacen('{', "{\"name\":\"net\",", 1));
    prop_oneof![
        list().prop_map(|text| ("10-net.conflist", text)),
        single().prop_map(|text| ("10-net.conf", text)),
        single().prop_map(|text| ("10-net.json", text)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn f33_install_then_uninstall_gives_every_byte_back(
        (name, text) in file(),
        shape in prop::sample::select(vec!["chained", "dropin", "standalone"]),
    ) {
        // Only a conflist has a drop-in directory.
        prop_assume!(shape != "dropin" || name.ends_with(".conflist"));
        let node = Node::with(&[(name, &text)]);
        let before = node.networks();
        let said = node.install(&format!("--shape {shape}"));
        prop_assert_ne!(said.code, 2, "{:?}", said);
        prop_assert_ne!(&node.networks(), &before);
        prop_assert_eq!(node.uninstall("").code, 0);
        prop_assert_eq!(node.networks(), before);
        prop_assert_eq!(node.minutes_later().uninstall("--json").json()["finished"].clone(), serde_json::json!(true));
        prop_assert!(node.programs().is_empty());
    }
}
