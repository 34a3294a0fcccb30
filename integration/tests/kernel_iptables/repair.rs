//! The next apply repairs the partial rules of a killed one.

use super::*;
use gybe_netfilter::apply::apply;
use gybe_netfilter::iptables::script;
use gybe_netfilter::ruleset::Family;

/// Each table of each family, in the order they are committed.
const COMMITS: [(&str, Family, &str); 6] = [
    ("ip", Family::V4, "raw"),
    ("ip", Family::V4, "mangle"),
    ("ip", Family::V4, "nat"),
    ("ip6", Family::V6, "raw"),
    ("ip6", Family::V6, "mangle"),
    ("ip6", Family::V6, "nat"),
];

/// Writes the part of the rules that one commit contains.
fn commit(variant: Variant, rules: &Ruleset, (program, family, table): (&str, Family, &str)) {
    let text = script(rules, family).unwrap();
    let part = text.split_inclusive("COMMIT\n").find(|part| part.starts_with(&format!("*{table}\n")));
    if let Some(part) = part {
        tables(variant, &format!("{program}tables-restore --noflush <<'EOF'\n{part}EOF"));
    }
}

/// A killed apply has made its first commits; one that is killed while it restores has undone the first of them. The other
/// tables are as before: empty, or with another policy's rules.
#[test]
fn f15_whatever_a_killed_apply_left_the_next_one_repairs() {
    let (other, rules) = (ruleset("outbound-exclude-cidr"), ruleset("dns-all-tproxy-dual"));
    for variant in VARIANTS {
        let backend = patient(variant);
        for (before, cut) in [None, Some(&other)].into_iter().flat_map(|b| (0..=6).map(move |cut| (b, cut))) {
            for undone in [false, true] {
                in_new_namespace(|| {
                    for (place, one) in COMMITS.into_iter().enumerate() {
                        match before {
                            _ if (place < cut) != undone => commit(variant, &rules, one),
                            Some(before) => commit(variant, before, one),
                            None => {}
                        }
                    }
                    apply(&backend, &rules).unwrap_or_else(|error| panic!("cut at {cut}: {error:?}"));
                    assert_there(&backend, &rules);
                    backend.remove().unwrap();
                    assert!(names_nothing_of_ours(&save(variant)));
                });
            }
        }
    }
}
