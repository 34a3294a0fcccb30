//! Every annotation in the plugin's table has its default, its form and an effect.

use gybe_plugin::conf::{AmbientConf, PluginConf};
use gybe_plugin::decide::{Decision, decide};
use gybe_plugin::gates::InitContainer;
use gybe_plugin::names::{ANNOTATIONS, Annotation, STATUS, ValueForm};
use gybe_plugin::pod::{Ambient, PodFacts};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// Decides about an injected pod with these annotations.
fn decision(annotations: &[(&str, &str)]) -> Decision {
    let mut all = BTreeMap::from([(STATUS, "{}")]);
    all.extend(annotations.iter().copied());
    let pod = json!({
        "kind": "Pod", "metadata": { "name": "a", "namespace": "shop", "annotations": all },
        "spec": { "containers": [{ "name": "app" }, { "name": "istio-proxy", "args": ["proxy", "sidecar"] }] },
    });
    let facts = PodFacts::from_manifest(&pod).unwrap();
    decide(&PluginConf::default(), &facts, &["10.244.0.10".parse().unwrap()], InitContainer::Counts)
}

/// Decides about an ambient pod with these annotations.
fn ambient_decision(annotations: &[(&str, &str)]) -> Decision {
    let annotations = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let ambient = Ambient::Yes { service_account: "default".to_owned(), why: String::new() };
    let facts = PodFacts { annotations: annotations.collect(), ambient, ..PodFacts::default() };
    let conf = PluginConf { ambient: Some(AmbientConf::default()), ..PluginConf::default() };
    decide(&conf, &facts, &[], InitContainer::Counts)
}

/// The decisions about a pod of the annotation's kind: without annotations, and with this value.
fn decisions(annotation: &Annotation, value: &str) -> [Decision; 2] {
    let with = &[(annotation.name, value)];
    match annotation.name.starts_with("ambient.") {
        true => [ambient_decision(&[]), ambient_decision(with)],
        false => [decision(&[]), decision(with)],
    }
}

fn with(annotation: &Annotation, value: &str) -> Decision {
    decisions(annotation, value)[1].clone()
}

/// Returns values of a form whose effect is not that of any default, and values that it refuses.
fn values(form: ValueForm) -> (&'static [&'static str], &'static [&'static str]) {
    match form {
        ValueForm::Text => (&[], &[]),
        ValueForm::Boolean => (&["false", "0", "F"], &[]),
        ValueForm::Mode => (&["TPROXY", "NONE"], &["redirect", ""]),
        ValueForm::Ports => (&["80", "80, 8000-8100"], &["*", "net1", "10.0.0.0/8"]),
        ValueForm::PortsOrAll => (&["", "80", "80,8000-8100"], &["net1", "10.0.0.0/8"]),
        ValueForm::Networks => (&["10.0.0.0/8", "10.1.2.3/8, fd00::/8"], &["*", "80", "net1"]),
        ValueForm::NetworksOrAll => (&["", "10.0.0.0/8", "fd00::/8,192.0.2.0/24"], &["80", "net1"]),
        ValueForm::Interfaces => (&["net1", "net1, tap0"], &["*", "80", "10.0.0.0/8"]),
    }
}

/// A value that the plugin refuses.
pub(crate) struct InvalidValue {
    /// The form, for the page.
    pub(crate) form: &'static str,
    annotation: &'static str,
    /// None: a list that is too long.
    value: Option<&'static str>,
}

const PORTS: &str = "traffic.sidecar.istio.io/excludeOutboundPorts";

/// A value for each error in a value.
pub(crate) const INVALID_VALUES: [InvalidValue; 9] = [
    invalid("mode", "sidecar.istio.io/interceptionMode", "redirect"),
    invalid("ports", PORTS, "http"),
    invalid("ports", PORTS, "080"),
    invalid("ports", PORTS, "8100-8000"),
    invalid("ports", PORTS, "*"),
    invalid("networks", "traffic.sidecar.istio.io/excludeOutboundIPRanges", "10.0.0.1"),
    invalid("interfaces", "traffic.sidecar.istio.io/excludeInterfaces", "-net1"),
    invalid("every list", PORTS, "80,,443"),
    InvalidValue { form: "every list", annotation: PORTS, value: None },
];

const fn invalid(form: &'static str, annotation: &'static str, value: &'static str) -> InvalidValue {
    InvalidValue { form, annotation, value: Some(value) }
}

impl InvalidValue {
    /// Returns the value as the page shows it.
    pub(crate) fn text(&self) -> String {
        self.value.map_or_else(|| "more than `max_intervals`".to_owned(), |value| format!("`{value}`"))
    }

    /// Returns the plugin's error about the value.
    pub(crate) fn error(&self) -> String {
        let too_long = || (0..=4096).map(|n| (2 * n).to_string()).collect::<Vec<_>>().join(",");
        let value = self.value.map_or_else(too_long, str::to_owned);
        let Decision::Refuse(refusal) = decision(&[(self.annotation, &value)]) else {
            panic!("{} is valid", self.text());
        };
        let error = refusal.to_string();
        let (_, fault) = error.split_once(&format!("annotation {}: ", self.annotation)).unwrap();
        fault.to_owned()
    }
}

#[test]
fn the_default_has_the_effect_of_no_annotation() {
    assert!(matches!(decision(&[]), Decision::Redirect(_)));
    assert!(matches!(ambient_decision(&[]), Decision::Ambient(_)));
    for annotation in &ANNOTATIONS {
        match annotation.default {
            Some(value) => {
                let [absent, default] = decisions(annotation, value);
                assert_eq!(default, absent, "{}", annotation.name);
            }
            // A setting has the default of the second one.
            None => assert!([STATUS, "ambient.istio.io/dns-capture"].contains(&annotation.name)),
        }
    }
}

#[test]
fn values_of_the_form_have_an_effect_and_others_are_refused() {
    for annotation in &ANNOTATIONS {
        let (mut valid, invalid) = values(annotation.form);
        if annotation.form == ValueForm::Boolean && annotation.default == Some("false") {
            valid = &["true", "1", "T"];
        }
        for value in valid {
            let [absent, decided] = decisions(annotation, value);
            let has_effect = decided != absent && !matches!(decided, Decision::Refuse(_));
            assert!(has_effect, "{} {value:?}: {decided:?}", annotation.name);
        }
        if matches!(annotation.form, ValueForm::PortsOrAll | ValueForm::NetworksOrAll) {
            assert!(!matches!(with(annotation, "*"), Decision::Refuse(_)), "{}", annotation.name);
        }
        for value in invalid {
            let decided = with(annotation, value);
            assert!(matches!(decided, Decision::Refuse(_)), "{} {value:?}: {decided:?}", annotation.name);
        }
    }
}

#[test]
fn every_invalid_value_has_an_error_of_its_own() {
    // Errors that differ only in the value that they quote are the same.
    let without_value = |invalid: &InvalidValue| match invalid.value {
        Some(value) => invalid.error().replace(&format!("{value:?}"), "VALUE"),
        None => invalid.error(),
    };
    let errors: BTreeSet<String> = INVALID_VALUES.iter().map(without_value).collect();
    assert_eq!(errors.len(), INVALID_VALUES.len(), "{errors:#?}");
}
