//! The probe's findings as JSON, as kept on a node and printed by `gybe probe`. Pure.

use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::probe::{Capabilities, Finding, Findings, Profile, Refusal, Table};
use serde_json::{Map, Value, json};

/// The boot and the kernel that findings are about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeIdentity {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot: String,
    /// `uname -r`.
    pub kernel: String,
}

/// The version of Gybe, which findings must match.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Encodes findings on `node`.
pub fn to_json(node: &NodeIdentity, found: &Capabilities) -> Value {
    let backends =
        object(found.backends.iter().map(|(kind, findings)| (kind.name(), backend_to_json(findings))));
    json!({
        "version": VERSION,
        "boot_id": node.boot,
        "kernel": node.kernel,
        "backends": backends,
        "untried": found.untried,
    })
}

fn backend_to_json(findings: &Findings) -> Value {
    object(findings.iter().map(|(profile, finding)| (profile.name(), finding_to_json(finding))))
}

/// Inserts one by one: collecting into a map sorts, which adds 20 KB to the program.
fn object<'n>(members: impl Iterator<Item = (&'n str, Value)>) -> Value {
    let mut object = Map::new();
    for (name, value) in members {
        object.insert(name.to_owned(), value);
    }
    Value::Object(object)
}

fn finding_to_json(finding: &Finding) -> Value {
    match finding {
        Finding::Works => json!({ "finding": "works" }),
        Finding::NotLoaded => json!({ "finding": "not loaded" }),
        Finding::Misbehaves(what) => json!({ "finding": "misbehaves", "what": what }),
        Finding::Refused(Refusal { why, errno, object, hint }) => {
            json!({ "finding": "refused", "why": why, "errno": errno, "object": object, "hint": hint })
        }
    }
}

/// Decodes findings on `node`; none when they are about another boot, kernel or version of Gybe, or when any
/// part is not as [`to_json`] encodes it.
pub fn from_json(value: &Value, node: &NodeIdentity) -> Option<Capabilities> {
    let is = |key: &str, expected: &str| value.get(key).and_then(Value::as_str) == Some(expected);
    if !(is("version", VERSION) && is("boot_id", &node.boot) && is("kernel", &node.kernel)) {
        return None;
    }
    let backends =
        members(value.get("backends")?, BackendKind::ALL.map(|kind| (kind, kind.name())), backend_from_json)?;
    let untried = value.get("untried")?.as_array()?.iter();
    let untried = untried.map(|sentence| sentence.as_str().map(str::to_owned)).collect::<Option<_>>()?;
    Some(Capabilities { backends, untried })
}

fn backend_from_json(value: &Value) -> Option<Findings> {
    members(value, Profile::EVERY.map(|profile| (profile, profile.name())), finding_from_json)
}

/// Decodes each member by `read`; none when a member has another name, or `read` returns none.
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

fn finding_from_json(value: &Value) -> Option<Finding> {
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

    fn node() -> NodeIdentity {
        NodeIdentity { boot: "0b9b5a7e".into(), kernel: "6.18.1".into() }
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
            (Profile::DnsWithoutZones, Finding::Misbehaves("it \"hangs\"".into())),
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
    fn findings_are_decoded_as_they_were_encoded() {
        assert_eq!(from_json(&to_json(&node(), &found()), &node()), Some(found()));
    }

    #[test]
    fn f30_findings_of_another_boot_kernel_or_version_are_ignored() {
        let json = to_json(&node(), &found());
        for other in [
            NodeIdentity { boot: "another".into(), ..node() },
            NodeIdentity { kernel: "6.18.2".into(), ..node() },
        ] {
            assert_eq!(from_json(&json, &other), None, "{other:?}");
        }
        let mut older = json;
        older["version"] = "0.0.9".into();
        assert_eq!(from_json(&older, &node()), None);
    }

    #[test]
    fn findings_with_an_unknown_part_are_ignored() {
        let json = to_json(&node(), &found());
        for (pointer, value) in [
            ("/backends/nft/v4/finding", json!("rocks")),
            ("/backends/nft/dns/why", json!(7)),
            ("/backends/nft", json!([])),
            ("/backends", json!({ "pf": {} })),
            ("/backends/nft", json!({ "v5": { "finding": "works" } })),
            ("/untried", json!("x")),
        ] {
            let mut invalid = json.clone();
            *invalid.pointer_mut(pointer).unwrap() = value;
            assert_eq!(from_json(&invalid, &node()), None, "{pointer}");
        }
        for value in [json!(null), json!([]), json!({}), json!("{}")] {
            assert_eq!(from_json(&value, &node()), None, "{value}");
        }
    }
}
