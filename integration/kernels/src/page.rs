//! The tables of docs/KERNELS.md, from the results. Pure, but for the names of the kernels' versions.

use crate::cases::Case;
use crate::judge::{adds, find_column};
use crate::machine::Kernel;
use crate::{Outcome, Run};
use gybe_kernels::{Add, COLUMNS, CheckResult, Flows, PODS};
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::probe::choose::BackendSetting;
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

/// Returns the tables of the page, each with its name there; for a selection of runs, their rows alone.
pub(crate) fn tables<'r>(
    directory: &Path,
    outcomes: impl Iterator<Item = (Run, &'r Outcome)> + Clone,
) -> [(&'static str, String); 3] {
    let cases = outcomes.clone().filter_map(|(run, outcome)| match run {
        Run::Case(case) => Some((case, outcome.as_deref().unwrap_or_default())),
        Run::Kernel(_) => None,
    });
    let kernels = outcomes.filter_map(|(run, outcome)| match run {
        Run::Kernel(kernel) => Some((kernel, outcome.as_deref().unwrap_or_default())),
        Run::Case(_) => None,
    });
    [
        ("complete kernels", complete(directory, kernels)),
        ("parts missing", parts_missing(cases.clone())),
        ("refusals", refusals(cases)),
    ]
}

/// Returns the page with these tables between its comments `<!-- NAME -->` and `<!-- end -->`.
///
/// # Errors
/// When the page has no such comments.
pub(crate) fn with_tables(page: &str, tables: &[(&str, String)]) -> Result<String, String> {
    tables.iter().try_fold(page.to_owned(), |page, (name, table)| {
        let begin = format!("<!-- {name} -->\n");
        let parts = page.split_once(&begin).and_then(|(before, after)| {
            let (_, after) = after.split_once("<!-- end -->")?;
            Some(format!("{before}{begin}{table}<!-- end -->{after}"))
        });
        parts.ok_or_else(|| format!("it has no {} with an end", begin.trim()))
    })
}

fn complete<'r>(
    directory: &Path,
    kernels: impl Iterator<Item = (&'static Kernel, &'r [CheckResult])>,
) -> String {
    let columns: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
    let mut text = head(&[&["Linux", "Debian"], columns.as_slice(), &["ADD"]].concat());
    for (kernel, results) in kernels {
        let release = kernel.release(directory).unwrap_or_else(|why| why);
        let numbers = COLUMNS.iter().map(|column| number(find_column(results, column.name)));
        let cells = [release, kernel.suite.to_owned()].into_iter().chain(numbers);
        text += &row(&cells.chain([added(results, BackendSetting::Auto)]).collect::<Vec<_>>());
    }
    text
}

fn parts_missing<'r>(cases: impl Iterator<Item = (&'static Case, &'r [CheckResult])>) -> String {
    let probes = BackendKind::ALL.map(|kind| format!("probe: {kind}"));
    let settings = BackendKind::ALL.map(BackendSetting::Only);
    let with = settings.map(|setting| format!("ADD with `{setting}`"));
    let mut text =
        head(&[&["Left out".to_owned()][..], &probes, &["ADD with `auto`".to_owned()], &with].concat());
    for (case, results) in cases {
        let probes = BackendKind::ALL.map(|kind| probed(results, kind));
        let with = settings.map(|setting| added(results, setting));
        let kernel = if case.kernel == "6.12" { String::new() } else { format!(" (Linux {})", case.kernel) };
        let name = format!("{}{kernel}", case.name);
        text += &row(&[&[name][..], &probes, &[added(results, BackendSetting::Auto)], &with].concat());
    }
    text
}

fn refusals<'r>(cases: impl Iterator<Item = (&'static Case, &'r [CheckResult])>) -> String {
    let mut text = head(&["Left out", "`backend`", "Pod", "Error", "Hint"]);
    for (case, results) in cases {
        let mut last = None;
        for add in adds(results) {
            let Some(refusal) = &add.refusal else { continue };
            // One line for each hint of a setting.
            if last.replace((&add.setting, &refusal.hint)) == Some((&add.setting, &refusal.hint)) {
                continue;
            }
            let id =
                refusal.message.split([' ', ':']).find(|word| word.starts_with("GYBE-")).unwrap_or_default();
            text += &row(&[case.name, &add.setting, &add.pod, id, &refusal.hint]);
        }
    }
    text
}

fn head<S: AsRef<str>>(titles: &[S]) -> String {
    format!("{}{}|\n", row(titles), "|---".repeat(titles.len()))
}

fn row<S: AsRef<str>>(cells: &[S]) -> String {
    // A vertical bar would end the cell.
    let cells: Vec<String> = cells.iter().map(|cell| cell.as_ref().replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | "))
}

fn number(flows: Option<&Flows>) -> String {
    match flows {
        Some(Flows::Made { number, wrong }) if wrong.is_empty() => number.to_string(),
        Some(Flows::Made { number, wrong }) => format!("{} of {number} wrong", wrong.len()),
        Some(Flows::Failed(_)) => "failed".to_owned(),
        None => "no result".to_owned(),
    }
}

/// What the probe found about a backend: `works`, `refused`, `no tproxy`.
fn probed(results: &[CheckResult], kind: BackendKind) -> String {
    let report = results.iter().find_map(|result| match result {
        CheckResult::Probe { report } => report.get("backends")?.get(kind.name())?.as_object(),
        _ => None,
    });
    let findings = report.into_iter().flatten();
    let findings =
        findings.map(|(profile, found)| (profile.as_str(), found.get("finding").and_then(Value::as_str)));
    let findings: Vec<_> =
        findings.map(|(profile, finding)| (profile, finding.unwrap_or("no finding"))).collect();
    summary(&findings, "works")
}

/// What ADDs with a setting did: `nft`, `refused`, `no TPROXY`.
fn added(results: &[CheckResult], setting: BackendSetting) -> String {
    let adds: Vec<&Add> = adds(results).filter(|add| add.setting == setting.as_str()).collect();
    let known = PODS.iter().filter_map(|pod| adds.iter().find(|add| add.pod == pod.name));
    let outcomes: Vec<(&str, &str)> =
        known.map(|add| (add.pod.as_str(), add.rules_by.first().map_or("refused", String::as_str))).collect();
    let backend = outcomes.iter().map(|(_, outcome)| *outcome).find(|outcome| *outcome != "refused");
    summary(&outcomes, backend.unwrap_or("refused"))
}

/// `usual` where every outcome is that; another outcome that all have; else the exceptions.
fn summary(outcomes: &[(&str, &str)], usual: &str) -> String {
    let Some((_, first)) = outcomes.first() else { return "no result".to_owned() };
    if outcomes.iter().all(|(_, outcome)| outcome == first) {
        return (*first).to_owned();
    }
    let mut text = usual.to_owned();
    for (name, outcome) in outcomes.iter().filter(|(_, outcome)| *outcome != usual) {
        // Writing to a String cannot fail.
        let _ = match *outcome {
            "refused" => write!(text, ", no {name}"),
            other => write!(text, ", {name}: {other}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/KERNELS.md");

    #[test]
    fn the_page_has_a_place_for_every_table_and_keeps_the_text_around_it() {
        let tables = tables(Path::new("nowhere"), std::iter::empty());
        let rewritten = with_tables(PAGE, &tables).unwrap();
        let has_no_table = |line: &&str| !line.starts_with('|');
        let text = |page: &str| page.lines().filter(has_no_table).collect::<Vec<_>>().join("\n");
        assert_eq!(text(&rewritten), text(PAGE));
        for (name, table) in &tables {
            assert!(rewritten.contains(table), "{name}");
        }
        assert!(with_tables("# Kernels\n<!-- refusals -->\n", &tables).is_err());
    }

    #[test]
    fn a_cell_has_what_all_share_or_the_exceptions() {
        for (outcomes, expected) in [
            (&[("IPv4", "nft"), ("TPROXY", "nft")][..], "nft"),
            (&[("IPv4", "nft"), ("TPROXY", "refused")], "nft, no TPROXY"),
            (&[("IPv4", "refused"), ("TPROXY", "refused")], "refused"),
            (&[("IPv4", "nft"), ("TPROXY", "misbehaves")], "nft, TPROXY: misbehaves"),
            (&[], "no result"),
        ] {
            assert_eq!(summary(outcomes, "nft"), expected);
        }
    }
}
