//! Whether the results of a machine are as they must be. Pure.

use crate::cases::{Case, Zones};
use gybe_kernels::{Add, COLUMNS, CheckResult, Flows, PODS};
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::probe::choose::BackendSetting;

/// Returns the problems of a complete kernel: every column has right outcomes, and `auto` redirects every pod with nft.
pub(crate) fn kernel(results: &[CheckResult]) -> Vec<String> {
    let missing = COLUMNS.iter().filter(|column| find_column(results, column.name).is_none());
    let missing = missing.map(|column| format!("{}: no result", column.name));
    let wrong = COLUMNS.iter().filter_map(|column| {
        let flows = find_column(results, column.name)?;
        (!flows.are_right()).then(|| format!("{}: {flows:?}", column.name))
    });
    let auto = auto(results, [Some(BackendKind::Nft); 4]);
    missing.chain(wrong).chain(adds(results).flat_map(|add| problems_of(add, &[]))).chain(auto).collect()
}

/// Returns the problems of a kernel with parts missing.
pub(crate) fn case(case: &Case, results: &[CheckResult]) -> Vec<String> {
    let probed = results.iter().any(|result| matches!(result, CheckResult::Probe { .. }));
    let unprobed = (!probed).then(|| "no report of the probe".to_owned());
    let adds = adds(results).flat_map(|add| problems_of(&without_zones(case.zones, add), case.named));
    unprobed.into_iter().chain(adds).chain(auto(results, case.auto)).collect()
}

pub(crate) fn find_column<'r>(results: &'r [CheckResult], column: &str) -> Option<&'r Flows> {
    results.iter().find_map(|result| match result {
        CheckResult::Column { name, flows } if name == column => Some(flows),
        _ => None,
    })
}

pub(crate) fn adds(results: &[CheckResult]) -> impl Iterator<Item = &Add> {
    results.iter().filter_map(|result| match result {
        CheckResult::Add(add) => Some(add),
        _ => None,
    })
}

/// A redirected pod has the rules of one backend, and all its flows are right. A refused one has no rules, its flows
/// are those of a pod without rules, and the error names a missing part.
fn problems_of(add: &Add, named: &[&str]) -> Vec<String> {
    let mut problems = Vec::new();
    if !add.flows.are_right() {
        problems.push(format!("{:?}", add.flows));
    }
    match &add.refusal {
        None if add.rules_by.len() != 1 => problems.push(format!("rules by {:?}", add.rules_by)),
        None if add.setting != BackendSetting::Auto.as_str() && add.rules_by != [add.setting.clone()] => {
            problems.push(format!("rules by {:?}", add.rules_by));
        }
        None => {}
        Some(refusal) => {
            if !add.rules_by.is_empty() {
                problems.push(format!("refused, and yet rules by {:?}", add.rules_by));
            }
            if !named.iter().any(|part| refusal.hint.contains(part)) {
                problems.push(format!(
                    "its hint names none of {named:?}: {} / {}",
                    refusal.message, refusal.hint
                ));
            }
        }
    }
    problems
        .into_iter()
        .map(|what| format!("ADD of {} with backend {}: {what}", add.pod, add.setting))
        .collect()
}

/// Returns the ADD without the differences that a kernel without conntrack zones makes for queries of one five-tuple.
fn without_zones(zones: Zones, add: &Add) -> Add {
    let mut add = add.clone();
    let is_degraded =
        zones == Zones::Absent && add.setting == BackendSetting::Auto.as_str() && add.refusal.is_none();
    if let (true, Flows::Made { wrong, .. }) = (is_degraded, &mut add.flows) {
        wrong.retain(|difference| !difference.contains(".zone"));
    }
    add
}

fn auto(results: &[CheckResult], expected: [Option<BackendKind>; 4]) -> Vec<String> {
    let wrong = PODS.iter().zip(expected).filter_map(|(pod, expected)| {
        let expected: Vec<String> = expected.iter().map(|kind| kind.name().to_owned()).collect();
        let found =
            adds(results).find(|add| add.setting == BackendSetting::Auto.as_str() && add.pod == pod.name);
        match found {
            None => Some(format!("no ADD of {} with backend auto", pod.name)),
            Some(add) if add.rules_by != expected => Some(format!(
                "ADD of {} with backend auto: rules by {:?}, not {expected:?}",
                pod.name, add.rules_by
            )),
            Some(_) => None,
        }
    });
    wrong.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::CASES;
    use gybe_kernels::Refusal;

    fn right() -> Flows {
        Flows::Made { number: 144, wrong: Vec::new() }
    }

    fn add(setting: &str, pod: &str, rules_by: &[&str]) -> Add {
        let rules_by = rules_by.iter().map(|kind| (*kind).to_owned()).collect();
        Add { setting: setting.into(), pod: pod.into(), rules_by, refusal: None, flows: right() }
    }

    fn complete() -> Vec<CheckResult> {
        let columns =
            COLUMNS.iter().map(|column| CheckResult::Column { name: column.name.to_owned(), flows: right() });
        let adds = PODS.iter().map(|pod| CheckResult::Add(add("auto", pod.name, &["nft"])));
        columns.chain(adds).collect()
    }

    #[test]
    fn a_kernel_is_right_only_with_every_column_and_every_add() {
        assert_eq!(kernel(&complete()), Vec::<String>::new());
        for index in 0..complete().len() {
            let mut results = complete();
            results.remove(index);
            assert_eq!(kernel(&results).len(), 1, "without result {index}");
            let mut results = complete();
            let wrong = Flows::Made { number: 144, wrong: vec!["v4: timeout".to_owned()] };
            match results.get_mut(index) {
                Some(CheckResult::Column { flows, .. } | CheckResult::Add(Add { flows, .. })) => {
                    *flows = wrong;
                }
                _ => panic!("no result {index}"),
            }
            assert_eq!(kernel(&results).len(), 1, "with a wrong flow in result {index}");
        }
    }

    #[test]
    fn a_refusal_leaves_no_rules_and_names_the_missing_part() {
        let refused = |hint: &str, rules_by: &[&str]| {
            let refusal = Refusal { message: "refused".to_owned(), hint: hint.to_owned() };
            problems_of(&Add { refusal: Some(refusal), ..add("nft", "IPv4", rules_by) }, &["nft_redir"]).len()
        };
        assert_eq!(refused("this kernel lacks nft_redir", &[]), 0);
        assert_eq!(refused("this kernel lacks a module", &[]), 1);
        assert_eq!(refused("this kernel lacks nft_redir", &["nft"]), 1);
    }

    #[test]
    fn an_add_without_rules_or_with_those_of_another_backend_is_a_problem() {
        for (rules_by, problems) in
            [(&["nft"][..], 0), (&[], 1), (&["iptables-nft"], 1), (&["nft", "iptables-nft"], 1)]
        {
            assert_eq!(problems_of(&add("nft", "IPv4", rules_by), &[]).len(), problems, "{rules_by:?}");
        }
    }

    #[test]
    fn only_without_conntrack_zones_may_queries_of_one_five_tuple_differ() {
        let wrong = vec!["v4.zone2.envoy: envoy:15053 instead of ext-peer".to_owned()];
        let add = Add { flows: Flows::Made { number: 155, wrong }, ..add("auto", "DNS", &["nft"]) };
        let problems = |zones, add: &Add| problems_of(&without_zones(zones, add), &[]).len();
        assert_eq!((problems(Zones::Absent, &add), problems(Zones::Present, &add)), (0, 1));
        assert_eq!(problems(Zones::Absent, &Add { setting: "nft".to_owned(), ..add }), 1);
    }

    #[test]
    fn troubleshooting_md_has_an_entry_for_every_part_that_may_be_missing() {
        let document = include_str!("../../../docs/TROUBLESHOOTING.md");
        let (_, section) = document.split_once("\n## 5. Missing parts of the kernel\n").unwrap();
        for part in CASES.iter().flat_map(|case| case.absent.iter().chain(case.named)) {
            assert!(
                section.lines().any(|line| line.starts_with('|') && line.contains(&format!("`{part}`"))),
                "{part}"
            );
        }
    }

    #[test]
    fn every_case_names_an_unpacked_kernel_and_what_a_refusal_must_name() {
        for case in CASES {
            assert!(case.machine().is_some(), "{}", case.name);
            let may_refuse = case.auto.contains(&None);
            assert!(!may_refuse || !case.named.is_empty(), "{}", case.name);
        }
    }
}
