//! Compares the rules of rustables with Gybe's, and lists the policies that rustables cannot write.

use crate::listing::elements_of;
use crate::{
    ObservedRules, all_cases, for_each, report_of, reports_what_it_replaced_and_what_was_refused, vectors,
    written_by_gybe,
};
use gybe_integration::namespace::in_new_namespace;
use gybe_netfilter::nft::Start;
use gybe_referees::backend::Rustables;
use gybe_referees::transport::transact;
use gybe_referees::with_rustables::{Inexpressible, batch, complete};
use std::collections::BTreeMap;

/// The policies of the flow vectors that rustables cannot write completely, by reason. The list may only shrink, except
/// for policies that are new in the vectors (the last line). All rules and all other sets of policies with ranges in a
/// set are written and compared.
const RUSTABLES_CANNOT: [(Inexpressible, &str); 1] = [(
    Inexpressible::EndsOfRanges,
    "
cni-default-v4 custom-ports dns-all-dual dns-all-tproxy-dual dns-enabled-no-servers dns-servers-dual
drop-invalid exclude-if exclude-if-tproxy inbound-list inject-default-dual inject-default-v4
loopback-cidr-8 outbound-exclude-cidr outbound-include-cidr outbound-none outbound-ports-exclude
outbound-ports-exclude-8080 outbound-ports-include owner-exclude owner-exclude-dns-all owner-include
owner-include-dns-all tproxy-default-dual uid-gid-lists virt-if-dns-all virt-if-tproxy
virt-if-wildcard
random-000 random-001 random-002 random-003 random-004 random-005 random-006 random-007 random-008
random-009 random-010 random-011 random-013 random-014 random-015 random-016 random-017 random-018
random-019 random-020 random-021 random-022 random-024 random-025 random-026 random-027 random-028
random-029 random-030 random-031 random-032 random-033 random-035 random-036 random-037 random-038
random-039
virt-if-include-cidr
",
)];

#[test]
fn rustables_and_gybe_write_the_same_except_for_what_rustables_cannot_express() {
    for_each(&all_cases(), |case| {
        let Ok(written) = batch(&case.rules, Start::Fresh) else { return None };
        let reference = in_new_namespace(|| {
            transact(&written.batch).unwrap();
            ObservedRules::observe()
        });
        let gybe = written_by_gybe(&case.rules);
        let mut differences = gybe.listing.differences(&reference.listing);
        for set in &written.sets_left_empty {
            assert!(differences.remove(&elements_of(set)).is_some(), "{set} is not empty");
        }
        let listed_alike = !written.sets_left_empty.is_empty() || gybe.nft == reference.nft;
        report_of(&differences)
            .or_else(|| (!listed_alike).then(|| format!("{}\nand\n{}", gybe.nft, reference.nft)))
    });
}

#[test]
fn rustables_cannot_express_exactly_the_listed_policies() {
    let cannot: BTreeMap<String, Inexpressible> = vectors()
        .into_iter()
        .filter_map(|case| Some((case.name, complete(&case.rules, Start::Fresh).err()?)))
        .collect();
    let known: BTreeMap<String, Inexpressible> = RUSTABLES_CANNOT
        .iter()
        .flat_map(|(reason, names)| names.split_whitespace().map(|name| (name.to_owned(), reason.clone())))
        .collect();
    let works: Vec<_> = known.keys().filter(|name| !cannot.contains_key(*name)).collect();
    assert!(works.is_empty(), "rustables can express these now; remove them from the list: {works:?}");
    let fails: Vec<_> = cannot.iter().filter(|(name, reason)| known.get(*name) != Some(reason)).collect();
    assert!(fails.is_empty(), "not listed, or listed with another reason: {fails:?}");
}

#[test]
fn rustables_reports_what_it_replaced_and_what_was_refused() {
    let all = vectors().into_iter().map(|case| case.rules);
    let expressible: Vec<_> = all.filter(|rules| complete(rules, Start::Fresh).is_ok()).collect();
    let [first, second, ..] = expressible.as_slice() else { panic!("{} policies", expressible.len()) };
    reports_what_it_replaced_and_what_was_refused(&Rustables, [first, second]);
}
