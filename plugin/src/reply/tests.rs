//! Error replies, and docs/TROUBLESHOOTING.md as a complete list of them.

use super::*;
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::iptables::Iptables;
use gybe_netfilter::model::ruleset::Engine;
use gybe_netfilter::probe::choose::{BackendSetting, choose};
use gybe_netfilter::probe::{Capabilities, Finding, Profile};
use std::collections::BTreeSet;
use std::path::PathBuf;

fn error_reply(verb: Option<Verb>, error: &PluginError) -> ErrorReply {
    match Reply::error(verb, Some("1.0.0"), error) {
        Reply::Error(reply) => reply,
        other => panic!("{other:?}"),
    }
}

fn no_backend(variant: Engine) -> PluginError {
    let source = Iptables::find_in(variant, &[]).unwrap_err().into();
    let kind = match variant {
        Engine::NfTables => BackendKind::IptablesNft,
        Engine::Legacy => BackendKind::IptablesLegacy,
    };
    SelectError::Programs { kind, source }.into()
}

#[test]
fn a_message_begins_with_program_verb_and_error_id() {
    let error = no_backend(Engine::NfTables);
    for (verb, begin) in [
        (Some(Verb::Add), "gybe-cni cmdAdd GYBE-ADD-015: this node cannot use backend iptables-nft: no"),
        (Some(Verb::Check), "gybe-cni cmdCheck GYBE-CHECK-015: this node"),
        (None, "gybe-cni GYBE-CNI-015: this node"),
    ] {
        assert!(error_reply(verb, &error).message.starts_with(begin), "{verb:?}");
    }
}

#[test]
fn f28_status_reports_an_unfit_node_with_code_50() {
    let reply = error_reply(Some(Verb::Status), &no_backend(Engine::Legacy));
    assert_eq!((reply.code, reply.id.as_str()), (50, "GYBE-STATUS-015"));
    assert!(reply.details.contains("nft"), "{reply:?}");
    let no_name = PluginError::Request(RequestError::Network(NetworkConfError::NoName));
    assert_eq!(error_reply(Some(Verb::Status), &no_name).code, 7);
}

#[test]
fn message_and_details_together_fit_an_event() {
    for error in [
        PluginError::OwnNamespace(PathBuf::from("/ü".repeat(3000))),
        PluginError::Drifted(vec!["chain missing".to_owned(); 90]),
        PluginError::Request(RequestError::Missing(vec!["CNI_NETNS"])),
        no_backend(Engine::Legacy),
    ] {
        let reply = error_reply(Some(Verb::Add), &error);
        assert!(reply.message.chars().count() + reply.details.chars().count() <= 300, "{reply:?}");
    }
}

#[test]
fn a_long_message_leaves_room_for_the_hint() {
    let found = (Profile::V4, Finding::Misbehaves("it ".repeat(200)));
    let findings = |kind| (kind, [found.clone()].into_iter().collect());
    let known =
        Capabilities { backends: BackendKind::ALL.map(findings).into_iter().collect(), untried: Vec::new() };
    let error = PluginError::from(SelectError::from(choose(&known, BackendSetting::Auto).unwrap_err()));
    let reply = error_reply(Some(Verb::Status), &error);
    assert_eq!(reply.details, error.hint().unwrap());
    assert!(
        reply.message.contains("no backend works on this node for auto: nft: v4 misbehaves"),
        "{}",
        reply.message
    );
}

#[test]
fn an_error_has_the_configurations_version_or_the_newest() {
    let error = PluginError::Stdin(crate::bounded_read::StdinError::TooLong);
    for (declared, expected) in [(Some("0.4.0"), "0.4.0"), (Some("7.0.0"), "1.1.0"), (None, "1.1.0")] {
        match Reply::error(Some(Verb::Add), declared, &error) {
            Reply::Error(reply) => assert_eq!(reply.json()["cniVersion"], expected, "{declared:?}"),
            other => panic!("{other:?}"),
        }
    }
}

/// The document has one row per number and code: `| 011 | 999 | …`.
#[test]
fn troubleshooting_md_has_every_number_with_its_code() {
    let document = include_str!("../../../docs/TROUBLESHOOTING.md");
    let source = include_str!("../reply.rs");
    let rows: BTreeSet<(u16, u32)> = document.lines().filter_map(row).collect();
    let arms: BTreeSet<(u16, u32)> = source.lines().filter_map(arm).collect();
    assert!(arms.len() > 20, "too few match arms found: {arms:?}");
    assert_eq!(rows, arms);
    for (number, _) in rows {
        assert!(document.contains(&format!("\n### GYBE-{number:03}\n")), "no entry for {number:03}");
    }
}

fn row(line: &str) -> Option<(u16, u32)> {
    let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
    Some((cells.next()?.parse().ok()?, cells.next()?.parse().ok()?))
}

/// The result of a match arm, on the arm's line or on one of its own.
fn arm(line: &str) -> Option<(u16, u32)> {
    let result = line.split_once("=> ").map_or(line, |(_, result)| result).trim().trim_end_matches(',');
    let (number, code) = result.strip_prefix('(')?.strip_suffix(')')?.split_once(", ")?;
    Some((number.parse().ok()?, code.parse().ok()?))
}
