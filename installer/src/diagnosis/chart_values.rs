//! What becomes of the values of istio-cni's chart in Gybe's: the table of Gybe's chart, as its template `gybe.values`
//! reads it. Pure; helm checks the result against the schema of Gybe's chart.

use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The table, which the chart reads, too.
const TABLE: &str = include_str!("../../../manifests/chart/files/istio-cni-values.yaml");
/// The schema of Gybe's chart: which values have one name in both charts.
const SCHEMA: &str = include_str!("../../../manifests/chart/values.schema.json");
/// Values below it are shared by all of Istio's charts.
const GLOBAL: &str = "global";

/// Why an empty value has no effect, whether Gybe's chart has its name or not.
const EMPTY: &str = "it is empty";

/// A row of the table; the file explains the fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ValueRow {
    key: String,
    to: Option<String>,
    #[serde(default)]
    of: BTreeMap<String, Option<String>>,
    #[serde(default)]
    when: BTreeMap<String, String>,
    #[serde(default)]
    join: Vec<ValuePart>,
    refused: Option<String>,
    ignored: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ValuePart {
    key: String,
    default: String,
}

/// What becomes of one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ValueOutcome {
    /// Gybe's chart has it under this path.
    Set { to: String, value: Value },
    /// It has no effect, for this reason.
    Ignored(String),
    /// It cannot be applied, for this reason.
    Refused(String),
}

/// The values for Gybe's chart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ValuesTranslation {
    pub(crate) values: Map<String, Value>,
    /// Each path in the given values, in the order in which it was applied.
    pub(crate) outcomes: Vec<(String, ValueOutcome)>,
}

/// The tables that this program contains.
pub(crate) struct ChartValues {
    rows: Vec<ValueRow>,
    schema: Value,
}

impl ChartValues {
    /// Reads the tables.
    ///
    /// # Errors
    /// When one of them has another form, which a test excludes.
    pub(crate) fn read() -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Self { rows: serde_saphyr::from_str(TABLE)?, schema: serde_json::from_str(SCHEMA)? })
    }

    /// Translates values: those below `cni` override the others, as in both charts.
    pub(crate) fn translate(&self, given: &Map<String, Value>) -> ValuesTranslation {
        let mut given = given.clone();
        if let Some(Value::Object(below)) = given.remove("cni") {
            merge(&mut given, &below);
        }
        let mut translation = ValuesTranslation::default();
        for (path, value) in leaves(&given, &|path| self.is_one_value(path)) {
            if !self.rows.iter().any(|row| row.is_about(&path, value)) {
                let outcome = self.outcome_without_row(&path, value);
                translation.add(path, outcome);
            }
        }
        for row in &self.rows {
            if let Some(value) = at(&given, &row.key).filter(|value| row.is_about(&row.key, value)) {
                let outcome = row.outcome(value, &given, &translation.values);
                translation.add(row.key.clone(), outcome);
            }
        }
        translation
    }

    fn outcome_without_row(&self, path: &str, value: &Value) -> ValueOutcome {
        if self.is_in_schema(path) {
            return ValueOutcome::Set { to: path.to_owned(), value: value.clone() };
        }
        match path.split('.').next() {
            _ if is_empty(value) => ValueOutcome::Ignored(EMPTY.to_owned()),
            Some(GLOBAL) => ValueOutcome::Ignored("Gybe's chart does not read it".to_owned()),
            _ => ValueOutcome::Refused("Gybe's chart has no such value".to_owned()),
        }
    }

    /// Reports whether the map at the path is a value of its own, such as `affinity`.
    fn is_one_value(&self, path: &str) -> bool {
        let below = format!("{path}.");
        path != GLOBAL && self.is_in_schema(path) && !self.rows.iter().any(|row| row.key.starts_with(&below))
    }

    fn is_in_schema(&self, path: &str) -> bool {
        let mut node = &self.schema;
        for name in path.split('.') {
            let definition = node.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix('#'));
            let resolved = definition.map_or(Some(node), |pointer| self.schema.pointer(pointer));
            match resolved.and_then(|node| node.get("properties")?.get(name)) {
                Some(below) => node = below,
                None => return false,
            }
        }
        true
    }
}

impl ValueRow {
    /// A map is never a value of istio-cni's chart: `image` is one of Gybe's.
    fn is_about(&self, path: &str, value: &Value) -> bool {
        self.key == path && !value.is_object()
    }

    fn outcome(&self, value: &Value, given: &Map<String, Value>, own: &Map<String, Value>) -> ValueOutcome {
        let is = |(path, expected): (&String, &String)| {
            at(given, path).is_some_and(|value| text(value) == *expected)
        };
        if text(value).is_empty() {
            return ValueOutcome::Ignored(EMPTY.to_owned());
        }
        if !self.when.iter().all(is) {
            let conditions: Vec<String> =
                self.when.iter().map(|(path, text)| format!("{path}: {text}")).collect();
            return ValueOutcome::Ignored(format!("it applies only with {}", conditions.join(", ")));
        }
        if let Some(to) = self.to.as_ref().filter(|_| self.key.starts_with("global."))
            && at(own, to).is_some_and(|value| !is_empty(value))
        {
            return ValueOutcome::Ignored(format!("{to} is set"));
        }
        let value = match (self.of.get(&text(value)), &self.refused, &self.ignored) {
            (Some(None), ..) => return ValueOutcome::Ignored("this is Gybe's default".to_owned()),
            (Some(Some(text)), ..) => Value::from(text.clone()),
            (None, Some(why), _) => return ValueOutcome::Refused(why.clone()),
            (None, None, Some(why)) => return ValueOutcome::Ignored(why.clone()),
            (None, None, None) if !self.of.is_empty() => {
                let known: Vec<&str> = self.of.keys().map(String::as_str).collect();
                return ValueOutcome::Refused(format!("{} is none of {}", text(value), known.join(", ")));
            }
            (None, None, None) if !self.join.is_empty() => {
                let part = |part: &ValuePart| {
                    at(given, &part.key).filter(|value| !is_empty(value)).map_or(part.default.clone(), text)
                };
                Value::from(self.join.iter().map(part).collect::<Vec<_>>().join("="))
            }
            (None, None, None) => value.clone(),
        };
        match &self.to {
            Some(to) => ValueOutcome::Set { to: to.clone(), value },
            None => ValueOutcome::Refused("Gybe's chart has no such value".to_owned()),
        }
    }
}

impl ValuesTranslation {
    fn add(&mut self, path: String, outcome: ValueOutcome) {
        if let ValueOutcome::Set { to, value } = &outcome {
            let nested = to
                .rsplit('.')
                .fold(value.clone(), |value, name| Value::Object(Map::from_iter([(name.to_owned(), value)])));
            if let Value::Object(nested) = nested {
                merge(&mut self.values, &nested);
            }
        }
        self.outcomes.push((path, outcome));
    }
}

/// Returns the value below a path of keys.
fn at<'a>(values: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let mut names = path.split('.');
    let first = values.get(names.next()?)?;
    names.try_fold(first, |value, name| value.get(name))
}

/// Returns all values that are no maps, and the maps that are `one_value` or empty, with their paths. A dot in a key is
/// written as for helm's `--set`.
fn leaves<'a>(values: &'a Map<String, Value>, one_value: &dyn Fn(&str) -> bool) -> Vec<(String, &'a Value)> {
    let mut found = Vec::new();
    for (name, value) in values {
        let name = name.replace('.', "\\.");
        match value {
            Value::Object(below) if !below.is_empty() && !one_value(&name) => {
                let path = |path: &str| format!("{name}.{path}");
                let below = leaves(below, &|below| one_value(&path(below)));
                found.extend(below.into_iter().map(|(below, value)| (path(&below), value)));
            }
            _ => found.push((name, value)),
        }
    }
    found
}

fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (name, value) in from {
        match (into.get_mut(name), value) {
            (Some(Value::Object(into)), Value::Object(from)) => merge(into, from),
            _ => drop(into.insert(name.clone(), value.clone())),
        }
    }
}

/// Returns a value as helm prints it.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn translated(given: &Value) -> (Value, BTreeMap<String, ValueOutcome>) {
        let table = ChartValues::read().unwrap();
        let ValuesTranslation { values, outcomes } = table.translate(given.as_object().unwrap());
        (values.into(), outcomes.into_iter().collect())
    }

    #[test]
    fn each_value_has_its_meaning_in_gybes_chart() {
        for (given, expected) in [
            (json!({ "chained": false }), json!({ "settings": { "shape": "standalone" } })),
            (json!({ "cni": { "chained": true }, "chained": false }), json!({})),
            (
                json!({ "chained": true, "istioOwnedCNIConfig": true, "istioOwnedCNIConfigFileName": "02-istio.conflist" }),
                json!({}),
            ),
            (
                json!({ "cniBinDir": "/x", "affinity": { "a": { "b": 1 } } }),
                json!({ "cniBinDir": "/x", "affinity": { "a": { "b": 1 } } }),
            ),
            (
                json!({ "resourceQuotas": { "enabled": true, "pods": 7 } }),
                json!({ "resourceQuotas": { "enabled": true, "nodes": 7 } }),
            ),
            (json!({ "repair": { "deletePods": true } }), json!({})),
            (json!({ "repair": { "repairPods": false } }), json!({ "settings": { "repair": "off" } })),
            (
                json!({ "repair": { "repairPods": false, "labelPods": true, "brokenPodLabelValue": "no" } }),
                json!({ "settings": { "repair": "label", "repair_label": "cni.istio.io/uninitialized=no" } }),
            ),
            (
                json!({ "repair": { "enabled": false, "repairPods": false, "deletePods": true } }),
                json!({ "settings": { "repair": "off" } }),
            ),
            (json!({ "hub": "", "global": { "imagePullPolicy": "" } }), json!({})),
            (
                json!({ "pullPolicy": "Never", "global": { "imagePullPolicy": "Always", "platform": "k3s" } }),
                json!({ "image": { "pullPolicy": "Never" }, "platform": "k3s" }),
            ),
        ] {
            assert_eq!(translated(&given).0, expected, "{given}");
        }
    }

    #[test]
    fn a_value_that_cannot_be_applied_is_refused_and_one_without_effect_is_named() {
        let given = json!({
            "hub": "x", "ambient": { "enabled": true, "ipv6": false, "new": 1 }, "revision": "a", "chained": "maybe",
            "new": { "a": 1, "": 2, "b": {}, "c.d": 3 }, "image.tag": "z",
            "global": { "proxy": { "image": "y" }, "resourceScope": "all" },
        });
        let (values, outcomes) = translated(&given);
        let of_ambient = json!({ "ambient": { "enabled": true }, "settings": { "ambient_ipv6": false } });
        assert_eq!(values, of_ambient);
        let refused = |outcome: &ValueOutcome| matches!(outcome, ValueOutcome::Refused(_));
        let (refused, ignored): (Vec<_>, Vec<_>) = outcomes.iter().partition(|(_, outcome)| refused(outcome));
        let paths = |found: Vec<(&String, &ValueOutcome)>| {
            found.into_iter().map(|(path, _)| path.clone()).collect::<Vec<_>>()
        };
        assert_eq!(
            paths(refused),
            ["ambient.new", "chained", "hub", "image\\.tag", "new.", "new.a", "new.c\\.d"]
        );
        let others = [
            "ambient.enabled",
            "ambient.ipv6",
            "global.proxy.image",
            "global.resourceScope",
            "new.b",
            "revision",
        ];
        assert_eq!(paths(ignored), others);
    }

    /// The values of the charts of Istio 1.10 to 1.24 that Gybe's chart does not have, as these charts set them.
    #[test]
    fn the_defaults_of_older_charts_are_translated_or_have_no_effect() {
        let given = json!({ "cni": {
            "hub": "", "tag": null, "image": "", "logLevel": "debug", "psp_cluster_role": "", "privileged": true,
            "rollingMaxUnavailable": 1, "configMap": "", "extra": [], "ambient": { "redirectMode": "iptables" },
        } });
        let (values, outcomes) = translated(&given);
        assert_eq!(values, json!({ "settings": { "log_level": "debug" } }));
        let refused = outcomes.iter().filter(|(_, outcome)| matches!(outcome, ValueOutcome::Refused(_)));
        assert_eq!(refused.count(), 0, "{outcomes:?}");
        for (level, expected) in [("fatal", json!("error")), ("trace", json!(null))] {
            let values = translated(&json!({ "logLevel": level })).0;
            assert_eq!(values.pointer("/settings/log_level").unwrap_or(&json!(null)), &expected);
        }
    }
}
