//! The table in docs/CONFIGURE.md has exactly the keys that are read.

use gybe_plugin::conf::unknown_keys;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

const TABLE: &str = include_str!("../../../docs/CONFIGURE.md");
const READERS: [&str; 2] = [include_str!("../../src/conf.rs"), include_str!("../../src/conf/istio_keys.rs")];

/// The keys in the table's first column.
fn documented() -> BTreeSet<&'static str> {
    let (_, section) = TABLE.split_once("## 3. The plugin").unwrap();
    let (section, _) = section.split_once("### Where the plugin").unwrap();
    section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect()
}

/// The literal keys in calls of `ConfReader`, without the key that contains them.
fn read() -> BTreeSet<&'static str> {
    let calls = READERS.iter().flat_map(|reader| reader.split("keys.").skip(1));
    let calls = calls.filter_map(|call| call.split_once("(\""));
    calls
        .filter(|(method, _)| method.chars().all(|c| c.is_ascii_alphabetic() || c == '_'))
        .map(|(_, rest)| rest.split('"').next().unwrap())
        .collect()
}

#[test]
fn exactly_the_keys_that_are_read_are_documented() {
    let documented: BTreeSet<&str> =
        documented().into_iter().map(|key| key.split('.').next_back().unwrap()).collect();
    assert!(read().len() > 10, "{:?}", read());
    assert_eq!(documented, read());
}

#[test]
fn every_documented_key_is_known() {
    let mut entry = Map::new();
    for key in documented() {
        match key.split_once('.') {
            Some((outer, inner)) => entry[outer][inner] = Value::Null,
            None => drop(entry.insert(key.to_owned(), json!({}))),
        }
    }
    assert_eq!(unknown_keys(&entry), [""; 0]);
    entry.insert("backened".to_owned(), Value::Null);
    assert_eq!(unknown_keys(&entry), ["backened"]);
}
