//! The iptables backend against real kernels' tables: both variants, in namespaces made for it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up must stop"
)]
#![allow(clippy::disallowed_methods, reason = "what the backend wrote is judged by the programs themselves")]

mod failures;
mod legacy_tables;
mod writing;

use gybe_integration::namespace::{in_new_namespace, sh};
use gybe_integration::programs::patient_iptables;
use gybe_integration::vectors;
use gybe_netfilter::apply::backend::{Backend, BackendError};
use gybe_netfilter::apply::{ApplyError, apply};
use gybe_netfilter::compile::compile;
use gybe_netfilter::iptables::{Iptables, IptablesError};
use gybe_netfilter::model::ruleset::Engine;
use gybe_netfilter::model::ruleset::Ruleset;
use std::time::Duration;

const VARIANTS: [Engine; 2] = [Engine::Legacy, Engine::NfTables];

/// Returns the backend with a deadline that suffices on a busy machine; other tests cover the deadline.
fn patient(variant: Engine) -> Iptables {
    patient_iptables(variant).unwrap()
}

/// Returns the output of the variant's `iptables-save` and `ip6tables-save`, without dates and counters.
fn save(variant: Engine) -> String {
    tables(variant, "(iptables-save; ip6tables-save) | sed -e 's/^#.*//' -e 's/ \\[[0-9:]*\\]$//'")
}

/// Runs a shell command in which `iptables`, `ip6tables-save` and so on are the variant's programs.
fn tables(variant: Engine, command: &str) -> String {
    let name = variant.iptables().trim_start_matches("iptables-");
    sh(&command
        .replace("tables ", &format!("tables-{name} "))
        .replace("tables-save", &format!("tables-{name}-save"))
        .replace("tables-restore", &format!("tables-{name}-restore")))
}

fn every_ruleset() -> Vec<(String, Ruleset)> {
    vectors::all().unwrap().into_iter().map(|vector| (vector.name, compile(&vector.policy))).collect()
}

fn ruleset(name: &str) -> Ruleset {
    every_ruleset().into_iter().find(|(other, _)| other == name).unwrap().1
}

/// Asserts that exactly these rules are in force.
fn assert_in_force(backend: &Iptables, rules: &Ruleset) {
    let found = backend.inspect().unwrap();
    let differences: Vec<String> =
        backend.desired(rules).unwrap().differences(&found).iter().map(ToString::to_string).collect();
    assert!(differences.is_empty(), "{}: {differences:#?}\n{}", backend.name(), save(backend.engine()));
}

fn refusal(backend: &Iptables, rules: &Ruleset) -> IptablesError {
    match apply(backend, rules) {
        Err(ApplyError::Backend(BackendError::Iptables(error))) => error,
        other => panic!("{other:?}"),
    }
}

fn has_nothing_of_gybe(text: &str) -> bool {
    !text.contains("ISTIO_") && !text.contains("GYBE")
}
