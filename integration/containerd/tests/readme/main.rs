//! Runs the commands of docs/TRY.md for a node with containerd and without a cluster, as they stand, on a node of its own,
//! and compares their output with what the page shows. `make -C integration readme` runs it: it needs root, the image, and the
//! packages of `setup.sh`.
#![cfg(test)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up must stop"
)]

use std::fs;
use std::path::{Path, PathBuf};

use gybe_containerd_tests::containerd::SOCKET;
use gybe_containerd_tests::{Conflist, Generation, Node, Programs};

/// The workspace's root, relative to this package's directory.
const TOP: &str = "../..";
/// The command that builds the image. `make -C integration readme` has run it before.
const BUILD: &str = "make image";

/// How long a script of the page's commands may take, in seconds.
const PATIENCE: &str = "600";
/// Prints what is left of Gybe on the node.
const LISTS_GYBE: &str =
    "{ ls /opt/cni/bin | grep gybe || true; } && { grep -rl gybe-cni /etc/cni/net.d || true; }";

/// A command of a `console` block, and what the page shows of its output.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    command: String,
    output: Vec<String>,
}

/// The commands of the `console` blocks of a page, each after `$ `.
fn walk(page: &str) -> Vec<Shown> {
    let mut shown: Vec<Shown> = Vec::new();
    let mut is_in_block = false;
    for line in page.lines() {
        if line.starts_with("```") {
            is_in_block = line == "```console";
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| is_in_block) {
            shown.push(Shown { command: command.to_owned(), output: Vec::new() });
        } else if is_in_block {
            shown.last_mut().unwrap().output.push(line.to_owned());
        }
    }
    shown
}

/// Reports whether a line is as the page shows it: `…` stands for any text.
fn is_like(line: &str, shown: &str) -> bool {
    let mut parts = shown.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap()) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        let end = if parts.peek().is_none() {
            rest.strip_suffix(part).map(|_| rest.len())
        } else {
            rest.find(part)
        };
        match end {
            Some(end) => rest = rest.split_at(end).1.strip_prefix(part).unwrap_or_default(),
            None => return false,
        }
    }
    true
}

/// Reports whether the output has the lines that the page shows, in their order.
fn shows(output: &str, shown: &[String]) -> bool {
    let mut lines = output.lines();
    shown.iter().all(|expected| lines.any(|line| is_like(line, expected)))
}

/// A node with a network and containerd. Removes its sandboxes: their cgroups are the machine's.
struct ContainerdNode {
    node: Node,
    programs: PathBuf,
    crictl_config: PathBuf,
}

impl ContainerdNode {
    fn start(generation: Generation) -> Self {
        let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("readme-{generation}.log"));
        let host_init = Path::new(env!("CARGO_BIN_EXE_gybe-host-init"));
        let network = Conflist::reference_plugins(generation);
        let node =
            Node::start(Programs { host_init, plugins: &[], runc: None }, generation, &network, log).unwrap();
        // crictl waits 2 s for an answer, which is too short on a busy machine.
        let crictl_config = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("crictl-{generation}.yaml"));
        fs::write(&crictl_config, "timeout: 120\n").unwrap();
        Self { node, programs: generation.programs().unwrap(), crictl_config }
    }

    /// Runs a shell script in the root of the workspace. `crictl` and `ctr` find this node's containerd.
    fn run(&self, script: &str) -> String {
        let crictl = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("crictl");
        assert!(crictl.join("crictl").exists(), "{}: run make -C integration readme", crictl.display());
        let mut command = self.node.host().command(&self.programs, "timeout");
        command
            .env("CRI_CONFIG_FILE", &self.crictl_config)
            .env("CONTAINERD_ADDRESS", SOCKET)
            .env("CONTAINER_RUNTIME_ENDPOINT", format!("unix://{SOCKET}"));
        let top = fs::canonicalize(TOP).unwrap();
        let enter = format!("cd {} && export PATH={}:$PATH\n", top.display(), crictl.display());
        let output = command.args([PATIENCE, "bash", "-c"]).arg(enter + script).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for ContainerdNode {
    fn drop(&mut self) {
        self.run("crictl rmp --force --all");
    }
}

fn assert_the_walk_succeeds(generation: Generation) {
    let page = fs::read_to_string(Path::new(TOP).join("docs/TRY.md")).unwrap();
    let walk = walk(&page);
    assert!(walk.len() >= 10 && walk[0].command == BUILD, "{walk:#?}");
    let node = ContainerdNode::start(generation);
    let run = |(number, shown): (usize, &Shown)| {
        format!("{{ {}; }} >/run/readme-{number} 2>&1; echo \"$?\"\n", shown.command)
    };
    let left = format!("{LISTS_GYBE} && ip netns && crictl pods --quiet && echo listed");
    let codes = node.run(&walk.iter().enumerate().skip(1).map(run).collect::<String>());
    let codes: Vec<&str> = codes.lines().collect();
    assert_eq!(codes.len(), walk.len() - 1, "{codes:?}");
    for (number, (shown, code)) in walk[1..].iter().zip(codes).enumerate() {
        let output =
            fs::read_to_string(node.node.host().path(format!("/run/readme-{}", number + 1))).unwrap();
        assert!(
            code == "0" && shows(&output, &shown.output),
            "{generation}: {shown:#?}\nexit code {code}\n{output}"
        );
    }
    // The control: for five minutes the program stays.
    let listed = node.run(&left);
    assert!(listed.contains("gybe-cni\n"), "{listed}");
    node.run("touch -d '-301 seconds' /etc/cni/net.d && /opt/cni/bin/gybe uninstall");
    assert_eq!(node.run(&left), "listed\n", "what stays on the node");
}

#[test]
fn the_readmes_walk_succeeds_with_containerd_1_6() {
    assert_the_walk_succeeds(Generation::V1_6);
}

#[test]
fn the_readmes_walk_succeeds_with_containerd_2() {
    assert_the_walk_succeeds(Generation::V2);
}

#[test]
fn three_dots_stand_for_any_text() {
    for (line, shown, expected) in [
        ("nothing is wrong", "nothing is wrong", true),
        ("nothing is wrong!", "nothing is wrong", false),
        ("SHA-256 123 here", "SHA-256 … here", true),
        ("SHA-256 123 there", "SHA-256 … here", false),
        ("a long line", "a…", true),
        ("a long line", "b…", false),
        ("a b c d", "…b…d", true),
        ("a b c d", "…c…b", false),
    ] {
        assert_eq!(is_like(line, shown), expected, "{line:?} {shown:?}");
    }
    assert!(shows("a\nb\nc\n", &["a".to_owned(), "c".to_owned()]));
    assert!(!shows("a\nb\nc\n", &["c".to_owned(), "a".to_owned()]));
}
