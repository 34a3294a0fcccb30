//! What runtimes are told, and that the book of errors knows all of it.

use super::*;
use gybe_netfilter::backend::BackendKind;
use gybe_netfilter::choose::{BackendSetting, choose};
use gybe_netfilter::iptables::{Iptables, Variant};
use gybe_netfilter::probe::{Capabilities, Finding, Profile};
use std::collections::BTreeSet;
use std::path::PathBuf;

fn failure(verb: Option<Verb>, fault: &PluginError) -> Failure {
    match Reply::failure(verb, Some("1.0.0"), fault) {
        Reply::Failure(failure) => failure,
        other => panic!("{other:?}"),
    }
}

fn no_backend(variant: Variant) -> PluginError {
    let source = Iptables::find_in(variant, &[]).unwrap_err().into();
    let kind = match variant {
        Variant::Nft => BackendKind::IptablesNft,
        Variant::Legacy => BackendKind::IptablesLegacy,
    };
    SelectError::Programs { kind, source }.into()
}

#[test]
fn a_message_begins_with_who_which_verb_and_which_error() {
    let fault = no_backend(Variant::Nft);
    for (verb, begin) in [
        (Some(Verb::Add), "gybe-cni cmdAdd GYBE-ADD-015: this node cannot use backend iptables-nft: no"),
        (Some(Verb::Check), "gybe-cni cmdCheck GYBE-CHECK-015: this node"),
        (None, "gybe-cni GYBE-CNI-015: this node"),
    ] {
        assert!(failure(verb, &fault).message.starts_with(begin), "{verb:?}");
    }
}

#[test]
fn f28_a_node_that_cannot_add_is_told_as_not_available() {
    let told = failure(Some(Verb::Status), &no_backend(Variant::Legacy));
    assert_eq!((told.code, told.id.as_str()), (50, "GYBE-STATUS-015"));
    assert!(told.details.contains("nft"), "{told:?}");
    let no_name = PluginError::Request(RequestError::Network(NetworkError::NoName));
    assert_eq!(failure(Some(Verb::Status), &no_name).code, 7);
}

#[test]
fn message_and_details_together_fit_an_event() {
    for fault in [
        PluginError::OwnNamespace(PathBuf::from("/ü".repeat(3000))),
        PluginError::Drifted(vec!["chain missing".to_owned(); 90]),
        PluginError::Request(RequestError::Missing(vec!["CNI_NETNS"])),
        no_backend(Variant::Legacy),
    ] {
        let told = failure(Some(Verb::Add), &fault);
        assert!(told.message.chars().count() + told.details.chars().count() <= 300, "{told:?}");
    }
}

#[test]
fn a_long_cause_leaves_room_for_what_would_help() {
    let found = (Profile::V4, Finding::Misbehaves("it ".repeat(200)));
    let findings = |kind| (kind, [found.clone()].into_iter().collect());
    let known =
        Capabilities { backends: BackendKind::ALL.map(findings).into_iter().collect(), untried: Vec::new() };
    let fault = PluginError::Backend(choose(&known, BackendSetting::Auto).unwrap_err().into());
    let told = failure(Some(Verb::Status), &fault);
    assert_eq!(told.details, fault.hint().unwrap());
    assert!(
        told.message.contains("no backend works on this node for auto: nft: v4 misbehaves"),
        "{}",
        told.message
    );
}

#[test]
fn an_error_is_written_in_the_configs_version_or_the_newest() {
    let fault = PluginError::Stdin(crate::stdin::StdinError::TooLong);
    for (said, want) in [(Some("0.4.0"), "0.4.0"), (Some("7.0.0"), "1.1.0"), (None, "1.1.0")] {
        match Reply::failure(Some(Verb::Add), said, &fault) {
            Reply::Failure(failure) => assert_eq!(failure.json()["cniVersion"], want, "{said:?}"),
            other => panic!("{other:?}"),
        }
    }
}

/// The book has one row per number: `| 011 | 999 | …`.
#[test]
fn the_book_of_errors_has_every_number_with_its_code() {
    let book = include_str!("../../../docs/ERRORS.md");
    let source = include_str!("../reply.rs");
    let rows: BTreeSet<(u16, u32)> = book.lines().filter_map(row).collect();
    let arms: BTreeSet<(u16, u32)> = source.lines().filter_map(arm).collect();
    assert!(arms.len() > 20, "arms are read: {arms:?}");
    assert_eq!(rows, arms);
}

fn row(line: &str) -> Option<(u16, u32)> {
    let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
    Some((cells.next()?.parse().ok()?, cells.next()?.parse().ok()?))
}

fn arm(line: &str) -> Option<(u16, u32)> {
    let pair = line.split_once("=> (")?.1.strip_suffix("),")?;
    let (number, code) = pair.split_once(", ")?;
    Some((number.parse().ok()?, code.parse().ok()?))
}
