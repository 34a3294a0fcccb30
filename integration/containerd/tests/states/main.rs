//! States of a node, and what each tool says of them: the plan, `/readyz`, the metrics, `gybe doctor`; and the next
//! pod that real containerd starts there. They never disagree. The table is docs/NODE-STATES.md. Needs root and the
//! packages of `setup.sh`:  make test-states

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up must stop"
)]
#![allow(clippy::print_stdout, reason = "which row it is at")]

mod rows;
mod site;

use gybe_containerd_tests::Generation;
use rows::{Row, rows};
use site::{Site, Verdicts};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::thread;

const HEAD: &str = "# States of a node

Which file the runtime takes, which plugins it runs and whether a pod meets Gybe is decided in one place (`installer/src/host/judge.rs`). This table
is made by `make node-states`, which puts a node into each state, lets the agent do what it does, asks each tool, and has real containerd start a pod of
the mesh. `make test-states` holds it equal, and fails where two of them disagree.

| State of the node | containerd | Plan | `/readyz` | `istio_cni_install_ready` | `gybe doctor` | The next pod | Why not |
|---|---|---|---|---|---|---|---|
";

fn line(row: &Row, verdicts: &Verdicts) -> String {
    let word = |yes: bool| if yes { "redirected" } else { "not" };
    let Verdicts { plan, ready, metric, doctor, pod, why } = verdicts;
    let ready = if *ready { "ready" } else { "not ready" };
    let doctor = if *doctor { "nothing wrong" } else { "WRONG" };
    let (name, plan) = (row.name, word(*plan));
    // What a cell holds must not end it.
    let why = why.replace('|', "\\|");
    format!(
        "| {name} | {} | {plan} | {ready} | {metric} | {doctor} | {} | {why} |\n",
        row.generation,
        pod.words()
    )
}

/// One node's rows: those of its generation, less those of the other nodes of it.
fn run(generation: Generation, (part, parts): (usize, usize)) -> Vec<(usize, String, Option<String>)> {
    let site = Site::of(generation, part);
    let all = rows();
    let these = all.iter().enumerate().filter(|(_, row)| row.generation == generation);
    let these = these.skip(part).step_by(parts);
    let only = std::env::var("GYBE_ROW").ok();
    let these = these.filter(|(_, row)| only.as_deref().is_none_or(|only| row.name.contains(only)));
    these
        .map(|(n, row)| {
            let verdicts = site.judged(n, row);
            println!("{}", line(row, &verdicts).trim_end());
            (n, line(row, &verdicts), verdicts.disagreement(row))
        })
        .collect()
}

#[test]
fn plan_readiness_metrics_doctor_and_the_next_pod_never_disagree() {
    let mut all = thread::scope(|scope| {
        let (old, new) = (Generation::V1_7, Generation::V2);
        let nodes = [(old, (0, 1)), (new, (0, 2)), (new, (1, 2))];
        let nodes = nodes.map(|(generation, part)| scope.spawn(move || run(generation, part)));
        nodes.into_iter().flat_map(|node| node.join().unwrap()).collect::<Vec<_>>()
    });
    all.sort();
    let wrong: Vec<_> = all.iter().filter_map(|(_, line, wrong)| Some((line, wrong.as_ref()?))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    if std::env::var_os("GYBE_ROW").is_some() {
        return;
    }
    assert!(all.len() >= 40, "{}", all.len());
    let mut text = HEAD.to_owned();
    for (_, line, _) in &all {
        write!(text, "{line}").unwrap();
    }
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/NODE-STATES.md");
    if std::env::var_os("GYBE_WRITE").is_some() {
        fs::write(&kept, &text).unwrap();
    }
    let there = fs::read_to_string(&kept).unwrap_or_default();
    let first = text.lines().zip(there.lines()).find(|(made, kept)| made != kept);
    assert!(
        text == there,
        "docs/NODE-STATES.md is not what was found, run: make node-states\nfirst: {first:#?}"
    );
}
