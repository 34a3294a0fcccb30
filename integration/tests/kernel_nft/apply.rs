//! The nft backend: apply, apply again, apply another policy, dry run, remove.

use crate::fixture::{differences, every_match, every_verdict, in_new_namespace, inspected, nft, redirect};
use gybe_netfilter::apply::apply;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::model::inventory::Inventory;
use gybe_netfilter::nft::Nft;

#[test]
fn the_applied_rules_read_back_equal() {
    in_new_namespace(|| {
        assert!(inspected().is_empty());
        apply(&Nft, &redirect()).unwrap();
        assert_eq!(differences(&redirect()), [""; 0], "{}", nft(&["-a", "list", "ruleset"]));
    });
}

#[test]
fn f18_a_second_apply_of_the_same_rules_changes_nothing() {
    in_new_namespace(|| {
        apply(&Nft, &redirect()).unwrap();
        let before = nft(&["-a", "list", "ruleset"]);
        apply(&Nft, &redirect()).unwrap();
        assert_eq!(nft(&["-a", "list", "ruleset"]), before, "with the same handles");
    });
}

#[test]
fn f18_other_rules_replace_the_previous_ones() {
    in_new_namespace(|| {
        for rules in [redirect(), every_match(), every_verdict(), redirect()] {
            apply(&Nft, &rules).unwrap();
            assert_eq!(differences(&rules), [""; 0], "{}", nft(&["list", "ruleset"]));
        }
    });
}

#[test]
fn remove_leaves_nothing_and_succeeds_without_rules() {
    in_new_namespace(|| {
        Nft.remove().unwrap();
        apply(&Nft, &every_match()).unwrap();
        Nft.remove().unwrap();
        assert_eq!(nft(&["list", "ruleset"]), "");
        assert_eq!(inspected(), Inventory::default());
        Nft.remove().unwrap();
    });
}

#[test]
fn a_dry_run_changes_nothing() {
    in_new_namespace(|| {
        Nft.dry_run(&every_match()).unwrap();
        assert_eq!(nft(&["list", "ruleset"]), "");
        apply(&Nft, &redirect()).unwrap();
        let before = nft(&["-a", "list", "ruleset"]);
        Nft.dry_run(&every_verdict()).unwrap();
        assert_eq!(nft(&["-a", "list", "ruleset"]), before);
    });
}

#[test]
fn f26_tables_of_other_owners_are_neither_read_nor_changed() {
    in_new_namespace(|| {
        nft(&[
            "add table inet gybe-like; add chain inet gybe-like nat-output { type nat hook output priority 7; }",
        ]);
        nft(&[
            "add set inet gybe-like outbound { type uid; }; add rule inet gybe-like nat-output skuid 1 return",
        ]);
        nft(&["add table ip gybe; add chain ip gybe nat-output"]);
        let foreign = nft(&["-a", "list", "ruleset"]);
        assert!(inspected().is_empty());
        apply(&Nft, &redirect()).unwrap();
        assert_eq!(differences(&redirect()), [""; 0]);
        Nft.remove().unwrap();
        assert_eq!(nft(&["-a", "list", "ruleset"]), foreign);
    });
}

#[test]
fn counters_are_reported_and_do_not_count_as_a_difference() {
    in_new_namespace(|| {
        apply(&Nft, &redirect()).unwrap();
        // No process listens on the port: one packet is sent, and the connection is refused.
        std::net::TcpStream::connect("127.0.0.1:9").unwrap_err();
        let inventory = inspected();
        let items = inventory.parts.iter().flat_map(|part| &part.items);
        let counted: u64 = items.filter_map(|item| item.packets).sum();
        assert!(counted > 0, "{}", nft(&["list", "ruleset"]));
        assert_eq!(differences(&redirect()), [""; 0]);
    });
}
