//! Ours and the referees' rules, each in a namespace of its own, and the kernel to judge.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "all of this is test code: what goes wrong is a test that fails"
)]

mod dump;
mod known;
mod libnftnl;
mod listing;
mod namespace;
mod policies;
mod with_nftnl;
mod with_rustables;
mod words;

use gybe_netfilter::apply::apply;
use gybe_netfilter::backend::Backend;
use gybe_netfilter::nft::Nft;
use gybe_netfilter::ruleset::Ruleset;
use listing::{Listing, elements_of};
use policies::Case;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A namespace with rules in it, as the three readers see it.
struct Seen {
    listing: Listing,
    nft: String,
}

impl Seen {
    fn here() -> Self {
        Self { listing: Listing::here(), nft: namespace::nft_list() }
    }
}

fn ours(rules: &Ruleset) -> Seen {
    namespace::in_new_namespace(|| {
        apply(&Nft, rules).unwrap();
        Seen::here()
    })
}

fn theirs(batch: &[u8]) -> Seen {
    namespace::in_new_namespace(|| {
        namespace::commit(batch).unwrap();
        Seen::here()
    })
}

fn everything() -> Vec<Case> {
    policies::vectors().into_iter().chain(policies::edges()).collect()
}

/// Looks at every case before it fails, and then tells of all that were not in order.
fn each(cases: &[Case], fault: impl Fn(&Case) -> Option<String>) {
    let mut told = String::new();
    for case in cases {
        if let Some(fault) = fault(case) {
            let _ = writeln!(told, "{}: {fault}", case.name);
        }
    }
    assert!(told.is_empty(), "{told}");
}

fn unless_none(differences: &BTreeMap<String, String>) -> Option<String> {
    (!differences.is_empty())
        .then(|| differences.iter().map(|(name, what)| format!("{name}: {what}\n")).collect())
}

#[test]
fn nftnl_and_we_write_the_same_byte_for_byte() {
    each(&everything(), |case| {
        let theirs = theirs(&with_nftnl::batch(&case.rules));
        unless_none(&ours(&case.rules).listing.differences(&theirs.listing))
    });
}

#[test]
fn the_nft_program_lists_ours_and_nftnls_alike() {
    each(&everything(), |case| {
        let [ours, theirs] = [ours(&case.rules).nft, theirs(&with_nftnl::batch(&case.rules)).nft];
        (ours != theirs).then(|| format!("ours:\n{ours}\nnftnl:\n{theirs}"))
    });
}

#[test]
fn libnftnl_reads_every_rule_and_set_we_wrote_as_if_it_were_its_own() {
    each(&everything(), |case| {
        let [ours, theirs] = [ours(&case.rules), theirs(&with_nftnl::batch(&case.rules))];
        let [left, right] = [ours.listing.texts(), theirs.listing.texts()].map(Iterator::collect::<Vec<_>>);
        let rules = left.iter().filter(|(name, _)| name.starts_with("rule ")).count();
        (left != right || rules != case.rules.rules().count()).then(|| format!("{left:#?}\nand\n{right:#?}"))
    });
}

#[test]
fn we_read_what_nftnl_wrote_as_what_we_would_have_written() {
    each(&everything(), |case| {
        let found = namespace::in_new_namespace(|| {
            namespace::commit(&with_nftnl::batch(&case.rules)).unwrap();
            Nft.inspect().unwrap()
        });
        let differences = Nft.desired(&case.rules).unwrap().differences(&found);
        (!differences.is_empty()).then(|| format!("{differences:?}"))
    });
}

#[test]
fn rustables_and_we_write_the_same_but_for_what_it_leaves_out() {
    each(&everything(), |case| {
        let Ok(written) = with_rustables::batch(&case.rules) else { return None };
        let theirs = theirs(&written.bytes);
        let ours = ours(&case.rules);
        let mut differences = ours.listing.differences(&theirs.listing);
        for set in &written.sets_left_empty {
            assert!(differences.remove(&elements_of(set)).is_some(), "{set} is not empty");
        }
        let listed_alike = !written.sets_left_empty.is_empty() || ours.nft == theirs.nft;
        unless_none(&differences)
            .or_else(|| (!listed_alike).then(|| format!("{}\nand\n{}", ours.nft, theirs.nft)))
    });
}

#[test]
fn what_rustables_cannot_express_is_what_is_known_and_no_less() {
    let cannot: BTreeMap<String, String> = policies::vectors()
        .into_iter()
        .filter_map(|case| match with_rustables::batch(&case.rules) {
            Ok(written) if written.sets_left_empty.is_empty() => None,
            Ok(_) => Some((case.name, known::ENDS_OF_RANGES.to_owned())),
            Err(inexpressible) => Some((case.name, inexpressible.to_string())),
        })
        .collect();
    let known: BTreeMap<String, String> = known::RUSTABLES_CANNOT
        .iter()
        .flat_map(|(why, names)| names.split_whitespace().map(|name| (name.to_owned(), (*why).to_owned())))
        .collect();
    let works: Vec<_> = known.keys().filter(|name| !cannot.contains_key(*name)).collect();
    assert!(works.is_empty(), "works now, take it off the list: {works:?}");
    let fails: Vec<_> = cannot.iter().filter(|(name, why)| known.get(*name) != Some(why)).collect();
    assert!(fails.is_empty(), "not on the list, or not for this reason: {fails:?}");
}

/// The control of all the tests above: what they compare does differ when a rule does.
#[test]
fn a_rule_that_is_missing_is_seen_by_every_reader() {
    for case in policies::vectors() {
        let (_, last) = case.rules.rules().last().unwrap();
        let fewer = case.rules.without(last.id.0).unwrap();
        let [whole, fewer] = [ours(&case.rules), theirs(&with_nftnl::batch(&fewer))];
        assert!(!whole.listing.differences(&fewer.listing).is_empty(), "{}", case.name);
        assert_ne!(whole.nft, fewer.nft, "{}", case.name);
        assert!(whole.listing.texts().ne(fewer.listing.texts()), "{}", case.name);
    }
}

/// Likewise for the order of rules, which is meaning.
#[test]
fn two_rules_in_the_wrong_order_are_seen() {
    for mut case in policies::vectors() {
        let right = ours(&case.rules);
        let chain = case.rules.chains.iter_mut().find(|chain| chain.rules.len() > 1).unwrap();
        chain.rules.swap(0, 1);
        let wrong = theirs(&with_nftnl::batch(&case.rules));
        assert!(!right.listing.differences(&wrong.listing).is_empty(), "{}", case.name);
    }
}
