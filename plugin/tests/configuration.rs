//! The table in docs/CONFIGURE.md has every key that is read, and no other.
#![allow(clippy::unwrap_used, reason = "a test that meets what it did not expect has nothing better to do")]

use gybe_plugin::conf::unknown_keys;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

const TABLE: &str = include_str!("../../docs/CONFIGURE.md");
const READERS: [&str; 3] = [
    include_str!("../src/conf.rs"),
    include_str!("../src/conf/incumbent.rs"),
    include_str!("../src/conf/probed.rs"),
];

/// The keys in the table's first column.
fn told() -> BTreeSet<&'static str> {
    let (_, section) = TABLE.split_once("## 3. The plugin").unwrap();
    let (section, _) = section.split_once("### Where the plugin").unwrap();
    section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect()
}

/// The literal keys that the code asks its entry for, those inside another without that one.
fn read() -> BTreeSet<&'static str> {
    let asked = READERS.iter().flat_map(|reader| reader.split("entry.").skip(1));
    let asked = asked.filter_map(|call| call.split_once("(\""));
    asked
        .filter(|(method, _)| method.chars().all(|c| c.is_ascii_alphabetic() || c == '_'))
        .map(|(_, rest)| rest.split('"').next().unwrap())
        .collect()
}

#[test]
fn every_key_that_is_read_is_told_and_no_other() {
    let told: BTreeSet<&str> = told().into_iter().map(|key| key.split('.').next_back().unwrap()).collect();
    assert!(read().len() > 10, "{:?}", read());
    assert_eq!(told, read());
}

#[test]
fn the_plugin_knows_every_key_that_is_told() {
    let mut entry = Map::new();
    for key in told() {
        match key.split_once('.') {
            Some((outer, inner)) => entry[outer][inner] = Value::Null,
            None => drop(entry.insert(key.to_owned(), json!({}))),
        }
    }
    assert_eq!(unknown_keys(&entry), [""; 0]);
    entry.insert("backened".to_owned(), Value::Null);
    assert_eq!(unknown_keys(&entry), ["backened"]);
}
