//! `manifests/left.sh` with a simulated kubectl.

use gybe_test_support::TestDir;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

/// A kubectl that answers from the files `pods`, `desired`, and one for each agent that has removed Gybe from its node.
const KUBECTL: &str = r#"#!/bin/sh
cd "$(dirname "$0")"
case "$*" in
*"get daemonset gybe-node"*) cat desired ;;
*"get pods"*) cat pods ;;
*--raw*) for word; do last=$word; done
    pod=${last#*/pods/}
    cat "left-${pod%%:*}" ;;
*) echo "kubectl: unexpected arguments: $*" >&2; exit 2 ;;
esac
"#;

struct Cluster(TestDir);

impl Cluster {
    /// `agents`: the name and node of each agent pod.
    fn new(name: &str, desired: &str, agents: &[(&str, &str)]) -> Self {
        let directory = TestDir::new_in(env!("CARGO_TARGET_TMPDIR").as_ref(), name);
        let kubectl = directory.write("kubectl", KUBECTL);
        fs::set_permissions(kubectl, Permissions::from_mode(0o755)).unwrap();
        directory.write("desired", desired);
        let pods: String = agents.iter().map(|(pod, node)| format!("{pod} {node}\n")).collect();
        directory.write("pods", pods);
        Self(directory)
    }

    fn set_left(&self, agent: &str) {
        self.0.write(format!("left-{agent}"), format!("uninstalled; report of {agent}\n"));
    }

    /// Runs the script without waiting; returns whether it succeeded, and what it printed: on success its standard
    /// output, else its standard error.
    fn run_script(&self) -> (bool, String) {
        let path = format!("{}:{}", self.0.display(), std::env::var("PATH").unwrap());
        #[expect(clippy::disallowed_methods, reason = "runs the script under test")]
        let mut command = Command::new("sh");
        let Output { status, stdout, stderr } =
            command.args(["../manifests/left.sh", "0"]).env("PATH", path).output().unwrap();
        let printed = if status.success() { stdout } else { stderr };
        (status.success(), String::from_utf8(printed).unwrap())
    }
}

#[test]
fn the_script_waits_for_every_agent() {
    let cluster = Cluster::new("left-each", "2", &[("gybe-a", "one"), ("gybe-b", "two")]);
    cluster.set_left("gybe-a");
    let (success, stderr) = cluster.run_script();
    assert!(!success && stderr.contains("two (gybe-b)") && !stderr.contains("one"), "{stderr}");
    cluster.set_left("gybe-b");
    let (success, stdout) = cluster.run_script();
    let reports: Vec<_> = stdout.lines().take(2).collect();
    assert!(success, "{stdout}");
    assert_eq!(reports, ["one: uninstalled; report of gybe-a", "two: uninstalled; report of gybe-b"]);
}

#[test]
fn the_script_waits_for_nodes_without_an_agent() {
    // The old agent of the third node has ended, and the next one does not run yet.
    let agents = [("gybe-a", "one"), ("gybe-b", "two"), ("gybe-c", "two")];
    let cluster = Cluster::new("left-between", "3", &agents);
    for (agent, _) in agents {
        cluster.set_left(agent);
    }
    let (success, stderr) = cluster.run_script();
    assert!(!success && stderr.contains("2 of 3 nodes"), "{stderr}");
    let unscheduled = Cluster::new("left-unscheduled", "3", &[("gybe-a", "")]);
    let (success, stderr) = unscheduled.run_script();
    assert!(
        !success && stderr.contains("no node yet (gybe-a)") && stderr.contains("0 of 3 nodes"),
        "{stderr}"
    );
    let without_agents = Cluster::new("left-empty", "3", &[]);
    assert!(!without_agents.run_script().0);
}
