//! Bounds on what is kept of a manifest while it is parsed. Members that no decision reads are skipped, and
//! every value but a list is truncated: the pod's owner chooses it, and it may be a megabyte long, or a secret.

use crate::names::{is_list, is_read_variable, nearest};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;

/// Longer than any value that a decision compares with, so that a truncated value equals none of them.
const MAX_CHARS: usize = 64;

/// The arguments that are kept: the second is the type of the proxy.
const MAX_ARGUMENTS: usize = 2;

/// A text truncated to its first [`MAX_CHARS`] characters.
struct ShortText(String);

/// The variables that a decision reads, truncated. Of two with one name the later counts, as in the container.
#[derive(Default)]
pub(super) struct ReadVariables(pub(super) BTreeMap<String, String>);

/// The first arguments, truncated.
#[derive(Default)]
pub(super) struct FirstArguments(pub(super) Vec<String>);

/// Istio's annotations, misspelt ones included, and those that mark the mirror of a static pod: lists in full,
/// the rest truncated. A pod may have 256 KiB of annotations.
#[derive(Default)]
pub(super) struct KeptAnnotations(pub(super) BTreeMap<String, String>);

/// Reports whether an annotation or a label is Istio's, or marks the mirror of a static pod.
pub(super) fn is_istio_key(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    domain == "istio.io" || domain.ends_with(".istio.io") || key.starts_with("kubernetes.io/config.")
}

/// The labels of the pods of Istio's components (docs/ISTIO.md, section 5).
pub const ISTIO_COMPONENTS: [(&str, &str); 2] = [("k8s-app", "istio-cni-node"), ("app", "istiod")];

/// Reports whether a label is kept: Istio's, or one that marks a pod of an Istio component.
pub(super) fn is_kept_label(key: &str, value: &str) -> bool {
    is_istio_key(key) || ISTIO_COMPONENTS.contains(&(key, value))
}

impl<'de> Deserialize<'de> for ShortText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ShortTextVisitor;
        impl Visitor<'_> for ShortTextVisitor {
            type Value = ShortText;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_str<E>(self, text: &str) -> Result<ShortText, E> {
                Ok(ShortText(text.chars().take(MAX_CHARS).collect()))
            }
        }
        deserializer.deserialize_str(ShortTextVisitor)
    }
}

impl<'de> Deserialize<'de> for ReadVariables {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        struct Variable {
            name: ShortText,
            value: Option<ShortText>,
        }
        struct VariablesVisitor;
        impl<'de> Visitor<'de> for VariablesVisitor {
            type Value = ReadVariables;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of variables")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<ReadVariables, A::Error> {
                let mut kept = BTreeMap::new();
                while let Some(Variable { name, value }) = all.next_element()? {
                    if is_read_variable(&name.0) {
                        kept.insert(name.0, value.map(|value| value.0).unwrap_or_default());
                    }
                }
                Ok(ReadVariables(kept))
            }
        }
        deserializer.deserialize_seq(VariablesVisitor)
    }
}

impl<'de> Deserialize<'de> for FirstArguments {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ArgumentsVisitor;
        impl<'de> Visitor<'de> for ArgumentsVisitor {
            type Value = FirstArguments;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of arguments")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<FirstArguments, A::Error> {
                let mut kept = Vec::new();
                while kept.len() < MAX_ARGUMENTS {
                    let Some(ShortText(argument)) = all.next_element()? else {
                        return Ok(FirstArguments(kept));
                    };
                    kept.push(argument);
                }
                while all.next_element::<IgnoredAny>()?.is_some() {}
                Ok(FirstArguments(kept))
            }
        }
        deserializer.deserialize_seq(ArgumentsVisitor)
    }
}

impl<'de> Deserialize<'de> for KeptAnnotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnnotationsVisitor;
        impl<'de> Visitor<'de> for AnnotationsVisitor {
            type Value = KeptAnnotations;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<KeptAnnotations, A::Error> {
                let mut kept = BTreeMap::new();
                while let Some(key) = all.next_key::<String>()? {
                    if is_list(&key) {
                        kept.insert(key, all.next_value()?);
                    } else {
                        let ShortText(value) = all.next_value()?;
                        if is_istio_key(&key) || nearest(&key).is_some() {
                            kept.insert(key, value);
                        }
                    }
                }
                Ok(KeptAnnotations(kept))
            }
        }
        deserializer.deserialize_map(AnnotationsVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error<T: for<'de> Deserialize<'de>>(json: &str) -> String {
        serde_json::from_str::<T>(json).err().unwrap().to_string()
    }

    #[test]
    fn a_value_of_another_type_is_refused_by_the_expected_type() {
        assert!(error::<ShortText>("7").contains("expected a string"));
        assert!(error::<ReadVariables>("7").contains("expected a list of variables"));
        assert!(error::<FirstArguments>("7").contains("expected a list of arguments"));
        assert!(error::<KeptAnnotations>("7").contains("expected annotations"));
    }

    #[test]
    fn of_the_arguments_the_first_two_are_kept() {
        let FirstArguments(kept) =
            serde_json::from_str(r#"["proxy", "sidecar", "--domain", "secret"]"#).unwrap();
        assert_eq!(kept, ["proxy", "sidecar"]);
    }
}
