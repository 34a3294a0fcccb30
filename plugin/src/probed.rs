//! What a probe found out, as the JSON that is kept on a node and shown to people. Pure.
//!
//! Where it is kept and how long it is believed is in `probe_cache`.

use gybe_netfilter::backend::BackendKind;
use gybe_netfilter::probe::{Capabilities, Finding, Findings, Profile, Refusal, Table};
use serde_json::{Map, Value, json};

/// Which kernel, running since when, and which version of ours: what findings are true for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot: String,
    /// `uname -r`.
    pub kernel: String,
}

/// Which version of ours the findings are about.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What was found out on `node`.
pub fn to_json(node: &Node, found: &Capabilities) -> Value {
    let backends = object(found.backends.iter().map(|(kind, findings)| (kind.name(), of_backend(findings))));
    json!({
        "version": VERSION,
        "boot_id": node.boot,
        "kernel": node.kernel,
        "backends": backends,
        "untried": found.untried,
    })
}

fn of_backend(findings: &Findings) -> Value {
    object(findings.iter().map(|(profile, finding)| (profile.name(), of_profile(finding))))
}

/// One by one: to collect into a map takes a sort, which is 20 KB of program.
fn object<'n>(members: impl Iterator<Item = (&'n str, Value)>) -> Value {
    let mut object = Map::new();
    for (name, value) in members {
        object.insert(name.to_owned(), value);
    }
    Value::Object(object)
}

fn of_profile(finding: &Finding) -> Value {
    match finding {
        Finding::Works => json!({ "finding": "works" }),
        Finding::NotLoaded => json!({ "finding": "not loaded" }),
        Finding::Misbehaves(what) => json!({ "finding": "misbehaves", "what": what }),
        Finding::Refused(Refusal { why, errno, object, hint }) => {
            json!({ "finding": "refused", "why": why, "errno": errno, "object": object, "hint": hint })
        }
    }
}

/// What was found out on `node`; nothing when that was another one, another version of ours, or
/// anything in it is not as [`to_json`] writes it.
pub fn from_json(value: &Value, node: &Node) -> Option<Capabilities> {
    let is = |key: &str, wanted: &str| value.get(key).and_then(Value::as_str) == Some(wanted);
    if !(is("version", VERSION) && is("boot_id", &node.boot) && is("kernel", &node.kernel)) {
        return None;
    }
    let backends =
        members(value.get("backends")?, BackendKind::ALL.map(|kind| (kind, kind.name())), to_backend)?;
    let untried = value.get("untried")?.as_array()?.iter();
    let untried = untried.map(|sentence| sentence.as_str().map(str::to_owned)).collect::<Option<_>>()?;
    Some(Capabilities { backends, untried })
}

fn to_backend(value: &Value) -> Option<Findings> {
    members(value, Profile::EVERY.map(|profile| (profile, profile.name())), to_profile)
}

/// What `read` makes of each member; nothing when one has none of these names, or no meaning.
fn members<K: Copy + PartialEq, V, const N: usize>(
    value: &Value,
    names: [(K, &str); N],
    read: fn(&Value) -> Option<V>,
) -> Option<Table<K, V>> {
    let object = value.as_object()?;
    let (mut table, mut known) = (Table::default(), 0);
    for (key, name) in names {
        if let Some(value) = object.get(name) {
            table.insert(key, read(value)?);
            known += 1;
        }
    }
    (known == object.len()).then_some(table)
}

fn to_profile(value: &Value) -> Option<Finding> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    match text("finding")?.as_str() {
        "works" => Some(Finding::Works),
        "not loaded" => Some(Finding::NotLoaded),
        "misbehaves" => Some(Finding::Misbehaves(text("what")?)),
        "refused" => {
            let errno =
                value.get("errno").and_then(Value::as_i64).and_then(|errno| i32::try_from(errno).ok());
            Some(Finding::Refused(Refusal {
                why: text("why")?,
                errno,
                object: text("object"),
                hint: text("hint"),
            }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Node {
        Node { boot: "0b9b5a7e".into(), kernel: "6.18.1".into() }
    }

    fn found() -> Capabilities {
        let refusal = Refusal {
            why: "nftables refused chain nat-output: ENOENT".into(),
            errno: Some(2),
            object: Some("chain nat-output".into()),
            hint: None,
        };
        let nft = [
            (Profile::V4, Finding::Works),
            (Profile::Dns, Finding::Refused(refusal)),
            (Profile::DnsWithoutZones, Finding::Misbehaves("it \"rests\"".into())),
        ];
        Capabilities {
            backends: [
                (BackendKind::Nft, nft.into_iter().collect()),
                (BackendKind::IptablesLegacy, [(Profile::V4, Finding::NotLoaded)].into_iter().collect()),
            ]
            .into_iter()
            .collect(),
            untried: vec!["uid 1337".to_owned()],
        }
    }

    #[test]
    fn what_is_kept_is_what_is_read() {
        assert_eq!(from_json(&to_json(&node(), &found()), &node()), Some(found()));
    }

    #[test]
    fn f30_findings_of_another_boot_kernel_or_version_are_none() {
        let kept = to_json(&node(), &found());
        for other in [Node { boot: "another".into(), ..node() }, Node { kernel: "6.18.2".into(), ..node() }] {
            assert_eq!(from_json(&kept, &other), None, "{other:?}");
        }
        let mut older = kept;
        older["version"] = json!("0.0.9");
        assert_eq!(from_json(&older, &node()), None);
    }

    #[test]
    fn anything_unknown_in_it_makes_all_of_it_unknown() {
        let kept = to_json(&node(), &found());
        for (place, value) in [
            ("/backends/nft/v4/finding", json!("rocks")),
            ("/backends/nft/dns/why", json!(7)),
            ("/backends/nft", json!([])),
            ("/backends", json!({ "pf": {} })),
            ("/backends/nft", json!({ "v5": { "finding": "works" } })),
            ("/untried", json!("x")),
        ] {
            let mut spoilt = kept.clone();
            *spoilt.pointer_mut(place).unwrap() = value;
            assert_eq!(from_json(&spoilt, &node()), None, "{place}");
        }
        for value in [json!(null), json!([]), json!({}), json!("{}")] {
            assert_eq!(from_json(&value, &node()), None, "{value}");
        }
    }
}
