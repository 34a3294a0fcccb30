//! `manifests/left.sh`, with a kubectl of the test's own: whom it waits for.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Answers from files: `pods`, `desired`, and one for each pod that has left.
const KUBECTL: &str = r#"#!/bin/sh
cd "$(dirname "$0")"
case "$*" in
*"get daemonset gybe-node"*) cat desired ;;
*"get pods"*) cat pods ;;
*--raw*) for word; do last=$word; done
    pod=${last#*/pods/}
    test -e "left-${pod%%:*}" ;;
*) echo "kubectl: not foreseen: $*" >&2; exit 2 ;;
esac
"#;

struct Cluster(PathBuf);

impl Cluster {
    fn new(test: &str, desired: &str, pods: &[(&str, &str)]) -> Self {
        let place =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("left-{test}-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("kubectl"), KUBECTL).unwrap();
        fs::set_permissions(place.join("kubectl"), Permissions::from_mode(0o755)).unwrap();
        fs::write(place.join("desired"), desired).unwrap();
        let pods: String = pods.iter().map(|(pod, node)| format!("{pod} {node}\n")).collect();
        fs::write(place.join("pods"), pods).unwrap();
        Self(place)
    }

    fn leaves(&self, pod: &str) {
        fs::write(self.0.join(format!("left-{pod}")), "").unwrap();
    }

    /// Asks once.
    fn asked(&self) -> (bool, String) {
        let path = format!("{}:{}", self.0.display(), std::env::var("PATH").unwrap());
        #[expect(clippy::disallowed_methods, reason = "the script under test")]
        let mut command = Command::new("sh");
        let Output { status, stderr, .. } =
            command.args(["../manifests/left.sh", "0"]).env("PATH", path).output().unwrap();
        (status.success(), String::from_utf8(stderr).unwrap())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn assert_every_agent_is_waited_for() {
    let cluster = Cluster::new("each", "2", &[("gybe-a", "one"), ("gybe-b", "two")]);
    cluster.leaves("gybe-a");
    let (left, told) = cluster.asked();
    assert!(!left && told.contains("two (gybe-b)") && !told.contains("one"), "{told}");
    cluster.leaves("gybe-b");
    assert_eq!(cluster.asked(), (true, String::new()));
}

pub(crate) fn assert_nodes_without_an_agent_are_waited_for() {
    // The third node's agent has gone, and the next is not there yet.
    let cluster = Cluster::new("between", "3", &[("gybe-a", "one"), ("gybe-b", "two"), ("gybe-c", "two")]);
    for pod in ["gybe-a", "gybe-b", "gybe-c"] {
        cluster.leaves(pod);
    }
    let (left, told) = cluster.asked();
    assert!(!left && told.contains("2 of 3 nodes"), "{told}");
    let unplaced = Cluster::new("unplaced", "3", &[("gybe-a", "")]);
    let (left, told) = unplaced.asked();
    assert!(!left && told.contains("no node yet (gybe-a)") && told.contains("0 of 3 nodes"), "{told}");
    let nobody = Cluster::new("nobody", "3", &[]);
    assert!(!nobody.asked().0);
}
