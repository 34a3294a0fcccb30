//! The nft backend: apply, apply again, apply another policy, dry run, remove. Every change by another program to
//! Gybe's table is detected and named (F21).

use crate::forms::{differences, every_match, every_verdict, in_new_namespace, inspected, nft, redirect};
use gybe_netfilter::apply::apply;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::model::inventory::Inventory;
use gybe_netfilter::nft::Nft;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Returns the handle that `nft -a` lists for the line that contains `line`.
fn handle(line: &str) -> String {
    let listed = nft(&["-a", "list", "table", "inet", "gybe"]);
    let line = listed
        .lines()
        .find(|candidate| candidate.contains(line))
        .unwrap_or_else(|| panic!("{line}: {listed}"));
    line.rsplit_once("handle ").unwrap().1.to_owned()
}

#[test]
fn f21_each_rule_that_was_deleted_is_named() {
    for (chain, rule) in redirect().rules() {
        in_new_namespace(|| {
            apply(&Nft, &redirect()).unwrap();
            let handle = handle(&format!("comment \"{}\"", rule.id));
            nft(&["delete", "rule", "inet", "gybe", chain.as_str(), "handle", &handle]);
            let sentence = format!("rule \"{}\" in chain {chain} is missing", rule.id);
            assert_eq!(differences(&redirect()), [sentence]);
        });
    }
}

/// nft lists every rule of a dormant table, although none is in force.
#[test]
fn f21_a_dormant_table_is_named_and_the_next_apply_repairs_it() {
    in_new_namespace(|| {
        apply(&Nft, &redirect()).unwrap();
        nft(&["add table inet gybe { flags dormant; }"]);
        assert_eq!(differences(&redirect()), ["the table's flag dormant should not be there"]);
        apply(&Nft, &redirect()).unwrap();
        assert_eq!(differences(&redirect()), [""; 0]);
        assert!(!nft(&["list", "table", "inet", "gybe"]).contains("dormant"));
    });
}

#[test]
fn f21_a_rule_that_was_changed_is_named() {
    in_new_namespace(|| {
        apply(&Nft, &redirect()).unwrap();
        let handle = handle("comment \"proxy-uid\"");
        nft(&[&format!(
            "replace rule inet gybe nat-output handle {handle} skuid 1338 counter return comment \"proxy-uid\""
        )]);
        assert_eq!(
            differences(&redirect()),
            [r#"rule "proxy-uid" in chain nat-output is not as it was written"#]
        );
    });
}

#[test]
fn f21_extra_rules_and_rules_out_of_order_are_named() {
    in_new_namespace(|| {
        apply(&Nft, &redirect()).unwrap();
        nft(&["insert rule inet gybe nat-output drop"]);
        nft(&[&format!("delete rule inet gybe nat-prerouting handle {}", handle("comment \"inbound\""))]);
        nft(&[
            "insert rule inet gybe nat-prerouting meta l4proto tcp counter redirect to :15006 comment \"inbound\"",
        ]);
        let found = differences(&redirect());
        assert!(
            found[0].starts_with("rule \"handle ")
                && found[0].ends_with("\" in chain nat-output should not be there"),
            "{found:?}"
        );
        assert!(found[1].contains("in chain nat-prerouting is out of order"), "{found:?}");
        assert_eq!(found.len(), 2, "{found:?}");
    });
}

#[test]
fn f21_missing_and_extra_elements_of_a_set_are_named() {
    in_new_namespace(|| {
        apply(&Nft, &redirect()).unwrap();
        nft(&["delete element inet gybe inbound-excluded-ports { 15090 }"]);
        nft(&["add element inet gybe inbound-excluded-ports { 22, 8000-8010 }"]);
        let sentences = [
            "element 15090 of set inbound-excluded-ports is missing",
            "element 22 of set inbound-excluded-ports should not be there",
            "element 8000-8010 of set inbound-excluded-ports should not be there",
        ];
        assert_eq!(differences(&redirect()), sentences);
    });
}

/// The catch-all element `*` matches every key without an element of its own.
#[test]
fn f21_a_catch_all_element_of_a_set_is_named() {
    in_new_namespace(|| {
        apply(&Nft, &redirect()).unwrap();
        // `nft` 1.0.6 crashes when it adds `*` to an existing set, so the test writes the whole table again.
        let table = nft(&["list", "table", "inet", "gybe"]).replacen("elements = { ", "elements = { *, ", 1);
        nft(&[&format!("delete table inet gybe\n{table}")]);
        let sentence = "element * of set inbound-excluded-ports should not be there";
        assert_eq!(differences(&redirect()), [sentence]);
        apply(&Nft, &redirect()).unwrap();
        assert_eq!(differences(&redirect()), [""; 0]);
    });
}

/// A limit of an element keeps it from matching further packets.
#[test]
fn f21_a_limit_of_the_elements_of_a_set_is_named() {
    in_new_namespace(|| {
        apply(&Nft, &redirect()).unwrap();
        let set = "set inbound-excluded-ports {";
        let table = nft(&["list", "table", "inet", "gybe"]);
        let limited = table.replacen("flags interval", "flags interval; limit rate 1/day burst 1 packets", 1);
        assert!(table.contains(set) && limited != table, "{table}");
        nft(&[&format!("delete table inet gybe\n{limited}")]);
        assert_eq!(differences(&redirect()), ["set inbound-excluded-ports is not as it was written"]);
        apply(&Nft, &redirect()).unwrap();
        assert_eq!(differences(&redirect()), [""; 0]);
    });
}

/// The kernel removes a table with an owner when that process ends.
#[test]
fn f21_a_table_that_a_process_owns_is_named() {
    in_new_namespace(|| {
        let mut owner = interactive_nft();
        let mut commands = owner.stdin.take().unwrap();
        writeln!(commands, "add table inet gybe {{ flags owner; }}").unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let named =
            || differences(&redirect()).contains(&"the table's flag owner should not be there".to_owned());
        while !named() {
            assert!(Instant::now() < deadline, "{:?}", differences(&redirect()));
            std::thread::yield_now();
        }
        drop(commands);
        owner.wait().unwrap();
    });
}

#[expect(clippy::disallowed_methods, reason = "the referees of these tests are nft and ip themselves")]
fn interactive_nft() -> Child {
    Command::new("nft").arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn f21_for_a_missing_table_every_chain_and_set_is_named() {
    in_new_namespace(|| {
        apply(&Nft, &redirect()).unwrap();
        nft(&["flush ruleset"]);
        let sentences = [
            "set inbound-excluded-ports is missing",
            "chain nat-capture is missing",
            "chain nat-output is missing",
            "chain nat-prerouting is missing",
        ];
        assert_eq!(differences(&redirect()), sentences);
        apply(&Nft, &redirect()).unwrap();
        assert_eq!(differences(&redirect()), [""; 0]);
    });
}

#[test]
fn f21_a_chain_with_another_priority_is_named() {
    in_new_namespace(|| {
        apply(&Nft, &redirect()).unwrap();
        nft(&["flush chain inet gybe nat-prerouting; delete chain inet gybe nat-prerouting"]);
        nft(&["add chain inet gybe nat-prerouting { type nat hook prerouting priority -99; }"]);
        assert_eq!(differences(&redirect())[0], "chain nat-prerouting is not as it was written");
    });
}

#[test]
fn a11_apply_removes_objects_that_another_program_added_to_the_table() {
    in_new_namespace(|| {
        apply(&Nft, &redirect()).unwrap();
        nft(&[
            "add rule inet gybe nat-output drop; add chain inet gybe other; add set inet gybe s { type mark; }",
        ]);
        apply(&Nft, &redirect()).unwrap();
        assert_eq!(differences(&redirect()), [""; 0]);
    });
}

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
