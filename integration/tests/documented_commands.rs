//! Runs every line of the `sh` blocks in README.md and docs/, as it stands, and compares docs/COMMANDS.md with `gybe
//! help`, and the metrics and events in docs/AGENT.md with the agent's.
//!
//! The lines of a page run in their order in one shell, in network and mount namespaces of their own: a node with a
//! primary CNI plugin and one address, writable without touching the machine.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use gybe_integration::documented::{commands, elsewhere};
use gybe_integration::programs::{path_of_ours, run};
use gybe_test_support::{TestDir, install};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// A node that the commands may change: copies of its directories, and an address.
const NODE: &str = r#"
set -e
ip link set lo up
ip address add 10.244.0.10/32 dev lo scope global
mount -t tmpfs none "$SCRATCH"
mkdir -p "$SCRATCH/etc" "$SCRATCH/opt" "$SCRATCH/var"
cp -r /etc/. "$SCRATCH/etc" 2>/dev/null || true # a plain user cannot read every file
ln -s /run "$SCRATCH/var/run"
for directory in etc opt var; do
    mount --bind "$SCRATCH/$directory" "/$directory"
done
mount -t tmpfs none /run
mkdir -p /run/netns /etc/cni/net.d /opt/cni/bin /var/lib/cni/results
echo '{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge"}]}' >/etc/cni/net.d/10-pods.conflist
touch /opt/cni/bin/bridge /opt/cni/bin/loopback
chmod 0755 /opt/cni/bin/*
set +e
"#;

/// The shell script for `commands`: each prints its exit code and its number on descriptor 3.
fn script(commands: &[String]) -> String {
    let lines =
        commands.iter().enumerate().map(|(number, command)| format!("{command}\necho \"$? {number}\" >&3\n"));
    format!("exec 3>&1 >&2\n{NODE}{}", lines.collect::<String>())
}

fn exit_codes_are_documented(page: &str) -> usize {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = fs::read_to_string(root.join(page)).unwrap();
    let commands: Vec<String> =
        commands(&text).into_iter().filter(|command| elsewhere(command).is_none()).collect();
    if commands.is_empty() {
        return 0;
    }
    let clone = TestDir::new("documented-commands");
    let (dist, scratch) = (clone.create_dir("dist"), clone.create_dir("scratch"));
    for program in ["gybe", "gybe-cni"] {
        install(&path_of_ours(program).unwrap(), &dist);
    }
    symlink(root.join("examples").canonicalize().unwrap(), clone.join("examples")).unwrap();
    let environment = format!("SCRATCH={}", scratch.display());
    let enter = format!("cd {} && exec bash -s", clone.display());
    let arguments = [
        "--mount",
        "--net",
        "--propagation",
        "private",
        "env",
        &environment,
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
        "bash",
        "-c",
        &enter,
    ];
    let ran = run("unshare", &arguments, &script(&commands)).unwrap();
    let codes: Vec<i32> =
        ran.out.lines().map(|line| line.split_once(' ').unwrap().0.parse().unwrap()).collect();
    assert_eq!(codes.len(), commands.len(), "{page}: {ran:#?}");
    for (command, code) in commands.iter().zip(codes) {
        assert_eq!(code, 0, "{page}: {command}\n{}", ran.err);
    }
    commands.len()
}

#[test]
fn every_command_in_the_documentation_runs_as_it_stands() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let mut pages: Vec<String> = fs::read_dir(docs)
        .unwrap()
        .map(|entry| format!("docs/{}", entry.unwrap().file_name().to_string_lossy()))
        .filter(|page| page.ends_with(".md"))
        .collect();
    pages.push("README.md".to_owned());
    let count: usize = pages.iter().map(|page| exit_codes_are_documented(page)).sum();
    assert!(count > 15, "only {count} commands were found in {pages:?}");
}

const COMMANDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/COMMANDS.md");

/// Keeps docs/COMMANDS.md equal to the help of every command; with GYBE_WRITE=1 writes the page.
#[test]
fn docs_commands_has_the_help_of_every_command() {
    let gybe = path_of_ours("gybe").unwrap();
    let gybe = gybe.to_str().unwrap();
    let help = |arguments: &[&str]| {
        // The help has the width of the terminal that this variable describes.
        let ran = run("env", &[&["-u", "COLUMNS", gybe], arguments].concat(), "").unwrap();
        assert_eq!(ran.code, Some(0), "{arguments:?}: {}", ran.err);
        let lines = ran.out.lines().map(|line| format!("{}\n", line.trim_end()));
        format!("```text\n{}\n```\n", lines.collect::<String>().trim_end())
    };
    let list = help(&["help"]);
    // A line with a command begins with two spaces and its name.
    let names = list.lines().take_while(|line| *line != "Options:");
    let names = names.filter_map(|line| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')));
    let names: Vec<&str> = names.filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains(&"verify") && names.contains(&"man"), "{names:?}");
    let mut page = format!(
        "# Commands\n\nWhat `gybe help` and `gybe help COMMAND` print; `gybe man` writes the same as man pages. A test \
         writes this page.\n\n{list}"
    );
    for name in names.into_iter().filter(|name| *name != "help") {
        page += &format!("\n## gybe {name}\n\n{}", help(&["help", name]));
    }
    if std::env::var_os("GYBE_WRITE").is_some() {
        fs::write(COMMANDS, &page).unwrap();
    }
    let written = fs::read_to_string(COMMANDS).unwrap();
    let differing = page.lines().zip(written.lines()).find(|(new, old)| new != old);
    assert!(page == written, "{COMMANDS} differs; with GYBE_WRITE=1 this test writes it: {differing:?}");
}

/// Returns the names of the agent's metrics that follow `quote` in `text`.
fn metrics<'a>(text: &'a str, quote: char) -> BTreeSet<&'a str> {
    let name = |rest: &'a str| {
        let end = rest.find(|letter: char| !(letter.is_ascii_lowercase() || letter == '_'));
        &rest[..end.unwrap_or(rest.len())]
    };
    let names = text.split(quote).map(name);
    names
        .filter(|name| ["gybe_", "istio_cni_", "process_"].iter().any(|start| name.starts_with(start)))
        .collect()
}

fn installer(file: &str) -> String {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../installer/src");
    fs::read_to_string(sources.join(file)).unwrap()
}

/// Returns a section of docs/AGENT.md.
fn section_of_agent(heading: &str) -> String {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/AGENT.md")).unwrap();
    let (_, section) = page.split_once(heading).unwrap();
    section.split("\n##").next().unwrap().to_owned()
}

#[test]
fn docs_agent_has_every_metric_of_the_agent() {
    let code = installer("agent/metrics.rs");
    let (code, _) = code.split_once("#[cfg(test)]").unwrap();
    let served = metrics(code, '"');
    assert!(served.contains("gybe_plugin_calls_total") && served.len() > 20, "{served:?}");
    assert_eq!(metrics(&section_of_agent("\n### Metrics\n"), '`'), served);
}

/// Checks that a section of docs/AGENT.md has a row for each variant of an enum whose text is its name, as in
/// `Self::RedirectionLost => "RedirectionLost",`.
fn assert_documents_names(heading: &str, file: &str, one: &str) {
    let code = installer(file);
    let arms = code
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Self::")?.strip_suffix("\",")?.split_once(" => \""));
    let written: BTreeSet<&str> = arms.filter(|(name, text)| name == text).map(|(_, text)| text).collect();
    assert!(written.contains(one) && written.len() > 8, "{written:?}");
    let section = section_of_agent(heading);
    let cells = section.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    let documented: BTreeSet<&str> =
        cells.flat_map(|cell| cell.split("`, `")).map(|name| name.trim_end_matches('`')).collect();
    assert_eq!(documented, written);
}

#[test]
fn docs_agent_has_every_reason_of_an_event_and_of_an_agent_that_is_not_ready() {
    assert_documents_names("\n### Events\n", "agent/events/event.rs", "RedirectionRefused");
    assert_documents_names("\n#### Reasons\n", "agent/status.rs", "NotInstalled");
}
