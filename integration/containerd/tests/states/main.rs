//! States of a node: the plan, `/readyz`, the metrics and `gybe doctor` agree in each about the next pod that real
//! containerd starts. The table is docs/NODE-STATES.md. Needs root and the packages of `setup.sh`:  make -C integration states

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up must stop"
)]
#![allow(clippy::print_stdout, reason = "the test prints each row")]

mod node;
mod rows;

use gybe_containerd_tests::Generation;
use node::{StateNode, Verdicts};
use rows::{ROWS, Row};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::thread;

const HEAD: &str = "# States of a node

`installer/src/host/judge.rs` decides which conf file the runtime takes, which plugins it runs, and whether a pod that
starts now is redirected. The plan, `/readyz`, the metrics and `gybe doctor` show its decision. For each state of a
node, this table shows them, and what happens to a pod that real containerd starts in that state.
`make -C integration write-states` writes the table; `make -C integration states` fails when it is outdated or when two
columns disagree.

| State of the node | containerd | Plan | `/readyz` | `istio_cni_install_ready` | `gybe doctor` | The next pod | Reason |
|---|---|---|---|---|---|---|---|
";

fn line(row: &Row, verdicts: &Verdicts) -> String {
    let Verdicts { plan, ready, metric, doctor, pod, reason } = verdicts;
    let plan = if *plan { "redirected" } else { "not redirected" };
    let ready = if *ready { "ready" } else { "not ready" };
    let doctor = if *doctor { "no problem" } else { "problem" };
    let pod = pod.text();
    // A vertical bar would end the cell.
    let reason = reason.replace('|', "\\|");
    let (name, generation) = (row.name, row.generation);
    format!("| {name} | {generation} | {plan} | {ready} | {metric} | {doctor} | {pod} | {reason} |\n")
}

/// A row's index, its line of the table, and the disagreement, if there is one.
type RowResult = (usize, String, Option<String>);

/// Runs every `nodes`-th row of a generation, from `first` on, on one node. `GYBE_ROW` selects rows by name.
fn run(generation: Generation, first: usize, nodes: usize) -> Vec<RowResult> {
    let node = StateNode::start(generation, first);
    let selected = std::env::var("GYBE_ROW").ok();
    let rows = ROWS.iter().enumerate().filter(|(_, row)| row.generation == generation);
    let rows = rows.skip(first).step_by(nodes);
    rows.filter(|(_, row)| selected.as_deref().is_none_or(|part| row.name.contains(part)))
        .map(|(index, row)| {
            let verdicts = node.verdicts(index, row);
            println!("{}", line(row, &verdicts).trim_end());
            (index, line(row, &verdicts), verdicts.disagreement(row))
        })
        .collect()
}

#[test]
fn plan_readiness_metrics_doctor_and_the_next_pod_agree() {
    let mut results = thread::scope(|scope| {
        let (old, new) = (Generation::V1_7, Generation::V2);
        let nodes = [
            scope.spawn(move || run(old, 0, 1)),
            scope.spawn(move || run(new, 0, 2)),
            scope.spawn(move || run(new, 1, 2)),
        ];
        nodes.into_iter().flat_map(|node| node.join().unwrap()).collect::<Vec<_>>()
    });
    results.sort();
    let disagreements: Vec<_> =
        results.iter().filter_map(|(.., disagreement)| disagreement.as_ref()).collect();
    assert!(disagreements.is_empty(), "{disagreements:#?}");
    if std::env::var_os("GYBE_ROW").is_some() {
        return;
    }
    assert_eq!(results.len(), ROWS.len());
    let mut table = HEAD.to_owned();
    for (_, line, _) in &results {
        write!(table, "{line}").unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/NODE-STATES.md");
    if std::env::var_os("GYBE_WRITE").is_some() {
        fs::write(&path, &table).unwrap();
    }
    let stored = fs::read_to_string(&path).unwrap_or_default();
    let difference = table.lines().zip(stored.lines()).find(|(new, stored)| new != stored);
    assert!(
        table == stored,
        "docs/NODE-STATES.md is outdated; run: make -C integration write-states\nfirst: {difference:#?}"
    );
}
