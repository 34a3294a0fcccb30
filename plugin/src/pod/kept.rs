//! How much of a manifest is kept while it is read. What no decision reads is skipped, and every value
//! but a list is cut: a pod's owner chooses them, and one may be a megabyte long, or a secret.

use crate::annotations::{is_list, nearest};
use crate::decide::is_read;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;

/// Longer than any word that a decision knows, so what is cut here was none of them.
const MOST: usize = 64;

/// The first two arguments: which of its programs the proxy is.
const ARGUMENTS: usize = 2;

/// A text cut to its first [`MOST`] characters.
struct Brief(String);

/// Variables that a decision reads, cut. Of two of one name the later counts, as in the container.
#[derive(Default)]
pub(super) struct Variables(pub(super) BTreeMap<String, String>);

/// The first arguments, cut.
#[derive(Default)]
pub(super) struct Command(pub(super) Vec<String>);

/// Annotations of Istio, also with a domain misspelt, and those that mark a mirror of a static pod: lists
/// whole, the rest cut. A pod may have 256 KiB of annotations.
#[derive(Default)]
pub(super) struct Annotations(pub(super) BTreeMap<String, String>);

/// Whether an annotation or a label is of Istio, or marks a mirror of a static pod.
pub(super) fn is_istios(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    domain == "istio.io" || domain.ends_with(".istio.io") || key.starts_with("kubernetes.io/config.")
}

/// Labels by which the pods of Istio's own parts are known (docs/ISTIO.md, section 5).
pub const PARTS: [(&str, &str); 2] = [("k8s-app", "istio-cni-node"), ("app", "istiod")];

/// Whether a label is kept: Istio's, or one that marks a pod of Istio's own parts.
pub(super) fn is_kept_label(key: &str, value: &str) -> bool {
    is_istios(key) || PARTS.contains(&(key, value))
}

impl<'de> Deserialize<'de> for Brief {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Cut;
        impl Visitor<'_> for Cut {
            type Value = Brief;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_str<E>(self, text: &str) -> Result<Brief, E> {
                Ok(Brief(text.chars().take(MOST).collect()))
            }
        }
        deserializer.deserialize_str(Cut)
    }
}

impl<'de> Deserialize<'de> for Variables {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        struct Variable {
            name: Brief,
            value: Option<Brief>,
        }
        struct Known;
        impl<'de> Visitor<'de> for Known {
            type Value = Variables;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of variables")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Variables, A::Error> {
                let mut kept = BTreeMap::new();
                while let Some(Variable { name, value }) = all.next_element()? {
                    if is_read(&name.0) {
                        kept.insert(name.0, value.map(|value| value.0).unwrap_or_default());
                    }
                }
                Ok(Variables(kept))
            }
        }
        deserializer.deserialize_seq(Known)
    }
}

impl<'de> Deserialize<'de> for Command {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct First;
        impl<'de> Visitor<'de> for First {
            type Value = Command;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of arguments")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Command, A::Error> {
                let mut kept = Vec::new();
                while kept.len() < ARGUMENTS {
                    let Some(Brief(argument)) = all.next_element()? else { return Ok(Command(kept)) };
                    kept.push(argument);
                }
                while all.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Command(kept))
            }
        }
        deserializer.deserialize_seq(First)
    }
}

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Istios;
        impl<'de> Visitor<'de> for Istios {
            type Value = Annotations;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<Annotations, A::Error> {
                let mut kept = BTreeMap::new();
                while let Some(key) = all.next_key::<String>()? {
                    if is_list(&key) {
                        kept.insert(key, all.next_value()?);
                    } else {
                        let Brief(value) = all.next_value()?;
                        if is_istios(&key) || nearest(&key).is_some() {
                            kept.insert(key, value);
                        }
                    }
                }
                Ok(Annotations(kept))
            }
        }
        deserializer.deserialize_map(Istios)
    }
}
