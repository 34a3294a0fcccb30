//! A conf file of the node: Gybe adds its entry, and removes it again.
#![no_main]

use gybe_fuzz::host::conflist::entry::Entry;
use gybe_fuzz::host::conflist::{IstioEntry, PluginChain};
use gybe_fuzz::host::json;
use libfuzzer_sys::fuzz_target;

const PLUGIN: &str = "gybe-cni";

fuzz_target!(|input: &[u8]| {
    let parsed = json::parse(input);
    // What serde_json accepts, runtimes accept.
    if let Ok(value) = serde_json::from_slice::<serde_json::Value>(input) {
        assert!(parsed.is_ok() || depth(&value) > 100, "{parsed:?}");
    }
    let Ok(chain) = PluginChain::read(input) else { return };
    let entry = Entry::parse(br#"{"type": "gybe-cni", "a": [1, {"b": null}]}"#).expect("an entry");
    let Ok(with) = chain.with(&entry, IstioEntry::Keep) else { return };
    let read = PluginChain::read(&with).expect("a file that Gybe wrote");
    assert_eq!(read.plugins().last(), Some(&PLUGIN), "the entry is the last");
    assert_eq!(read.entries(PLUGIN).count(), 1);
    assert!(entry.has_same_value(read.entry(PLUGIN).expect("the entry")));
    let others = |chain: &PluginChain<'_>| -> Vec<String> {
        chain.plugins().into_iter().filter(|plugin| *plugin != PLUGIN).map(str::to_owned).collect()
    };
    assert_eq!(others(&read), others(&chain), "the other plugins stay");
    assert_eq!(read.with(&entry, IstioEntry::Keep).expect("again"), with, "writing again changes nothing");
    // Removed, the file is the one before, byte for byte.
    if chain.entry(PLUGIN).is_none() && !chain.plugins().is_empty() {
        assert_eq!(read.without(PLUGIN).expect("the other plugins"), input);
    }
});

fn depth(value: &serde_json::Value) -> usize {
    let deepest = |values: &mut dyn Iterator<Item = &serde_json::Value>| values.map(depth).max().unwrap_or(0);
    1 + match value {
        serde_json::Value::Array(values) => deepest(&mut values.iter()),
        serde_json::Value::Object(members) => deepest(&mut members.values()),
        _ => 0,
    }
}
