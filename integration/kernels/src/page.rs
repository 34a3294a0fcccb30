//! docs/KERNELS.md, from the results. Pure, but for the names of the kernels' versions.

use crate::judge::{adds, find_column};
use crate::{Outcome, Run};
use gybe_kernels::{Add, COLUMNS, CheckResult, Flows, PODS};
use gybe_netfilter::backend::BackendKind;
use gybe_netfilter::choose::BackendSetting;
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

const HEAD: &str = "# Kernels

`make test-kernels` boots Debian's kernels in virtual machines and checks there what Gybe does; `make kernels` writes
this page from the results. Each kernel starts with the static programs, busybox and iptables 1.8.9 in an initrd, under
qemu's software emulation.

Gybe does not ask for a kernel's version: the probe tries what the kernel does ([BACKENDS.md](BACKENDS.md)). Back-ported
and disabled features therefore count as they are.

## 1. Complete kernels

Each number is how many connections were made under one policy of the flow vectors (`integration/vectors/rules`), with
rules written by `gybe apply`; each connection arrived as recorded. In the column *user namespace* another user namespace
owns the pod's network namespace (`hostUsers: false`). *ADD* is the backend that `gybe-cni` used with `backend: auto` for
four pods (IPv4, dual stack, DNS, TPROXY), whose connections arrived as recorded, too.

";

const PARTS: &str = "
## 2. Kernels with parts missing

The modules are left out of the initrd of Linux 6.12, where the table names no other kernel. For each, `gybe probe` runs,
then `gybe-cni ADD` for pods with IPv4, both families, DNS capture (with both families) and TPROXY, with each setting of
`backend`. Every redirected pod's connections arrive as recorded. Every refused pod has no rule of Gybe, its connections
are those of a pod without rules, and the error's hint names the missing part. A cell lists the exceptions: `no TPROXY`
means that everything else works or is redirected.

";

const REST: &str = "
What a refusal says in each case:

";

const UNTESTED: &str = "
## 3. Not tested

- Kernels before 5.10: Debian's mirrors have none. Gybe's nftables rules need address translation in the inet family,
  which Linux has from 5.2 on. A kernel that refuses it is treated as one without `nft_chain_nat`: iptables is used where
  it works.
- Kernels of other distributions and vendors: Red Hat, SUSE, Ubuntu, Amazon Linux, Bottlerocket, Container-Optimized OS,
  Flatcar, Talos, Azure Linux. `gybe probe` shows which backends work on them.
- Kernels built without IPv6: Debian's have it built in, so that only the parameters can switch it off.
- Real hardware, and arm64 kernels but the one above.
";

/// Returns the page; for a selection of runs, its rows alone.
pub(crate) fn render<'r>(
    directory: &Path,
    outcomes: impl Iterator<Item = (Run, &'r Outcome)> + Clone,
) -> String {
    let mut text = HEAD.to_owned();
    let columns: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
    text += &row(&[&["Linux", "Debian"], columns.as_slice(), &["ADD"]].concat());
    text += &line(columns.len() + 3);
    for (run, outcome) in outcomes.clone() {
        if let Run::Kernel(kernel) = run {
            let release = kernel.release(directory).unwrap_or_else(|why| why);
            let results = outcome.as_deref().unwrap_or_default();
            let numbers = COLUMNS.iter().map(|column| number(find_column(results, column.name)));
            let cells: Vec<String> = [release, kernel.suite.to_owned()]
                .into_iter()
                .chain(numbers)
                .chain([added(results, BackendSetting::Auto)])
                .collect();
            text += &row(&cells);
        }
    }
    text += PARTS;
    let backends = BackendKind::ALL.map(BackendKind::name);
    let probes = backends.map(|name| format!("probe: {name}"));
    let settings = BackendKind::ALL.map(BackendSetting::Only);
    let with = settings.map(|setting| format!("ADD with `{setting}`"));
    let titles = [&["Left out".to_owned()][..], &probes, &["ADD with `auto`".to_owned()], &with].concat();
    text += &row(&titles);
    text += &line(titles.len());
    let cases = outcomes.filter_map(|(run, outcome)| match run {
        Run::Case(case) => Some((case, outcome.as_deref().unwrap_or_default())),
        Run::Kernel(_) => None,
    });
    for (case, results) in cases.clone() {
        let probes = BackendKind::ALL.map(|kind| probed(results, kind));
        let with = settings.map(|setting| added(results, setting));
        let kernel = if case.kernel == "6.12" { String::new() } else { format!(" (Linux {})", case.kernel) };
        let name = format!("{}{kernel}", case.name);
        text += &row(&[&[name][..], &probes, &[added(results, BackendSetting::Auto)], &with].concat());
    }
    text += REST;
    text += &row(&["Left out", "`backend`", "Pod", "Error", "Hint"]);
    text += &line(5);
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
    text + UNTESTED
}

fn row<S: AsRef<str>>(cells: &[S]) -> String {
    // A vertical bar would end the cell.
    let cells: Vec<String> = cells.iter().map(|cell| cell.as_ref().replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | "))
}

fn line(columns: usize) -> String {
    format!("{}|\n", "|---".repeat(columns))
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
