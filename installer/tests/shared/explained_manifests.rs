//! `gybe explain` on the manifests that Istio's injector wrote: what it prints, and that the printed policy is the one
//! that the plugin decides.

use crate::injected_manifests::{manifests, short};
use gybe_installer::pod::manifest::pods;
use gybe_installer::pod::policy_file::PolicyFile;
use gybe_plugin::conf::PluginConf;
use gybe_plugin::decide::{Decision, decide};
use gybe_plugin::gates::InitContainer;
use gybe_plugin::pod::PodFacts;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Output};

fn explain(manifest: &Path, flags: &[&str]) -> Output {
    #[allow(clippy::disallowed_methods, reason = "the program under test")]
    let mut gybe = Command::new(env!("CARGO_BIN_EXE_gybe"));
    gybe.arg("explain").args(flags).arg("--pod").arg(manifest).output().unwrap()
}

/// The addresses that `gybe explain` assumes without a namespace.
fn assumed() -> [IpAddr; 2] {
    ["192.0.2.1", "2001:db8::1"].map(|address| address.parse().unwrap())
}

#[test]
fn the_printed_policy_is_the_one_that_the_plugin_decides() {
    let mut redirected = 0;
    for path in manifests() {
        let Ok(pods) = pods(&std::fs::read_to_string(&path).unwrap()) else { continue };
        let name = short(&path);
        let out = explain(&path, &["--ignore-init", "--json"]);
        assert_eq!(out.status.code(), Some(0), "{name}: {out:?}");
        let explained: Vec<Value> = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(explained.len(), pods.len(), "{name}");
        for (pod, explained) in pods.iter().zip(&explained) {
            let facts = PodFacts::from_manifest(&pod.pod).unwrap();
            match decide(&PluginConf::default(), &facts, &assumed(), InitContainer::Ignored) {
                Decision::Redirect(policy) => {
                    let printed = PolicyFile::from_entries(explained["policy"].as_object().unwrap()).unwrap();
                    assert_eq!(printed.policy(&[]).unwrap(), policy, "{name} {}", pod.origin);
                    redirected += 1;
                }
                Decision::LeaveAlone(reason) => {
                    assert_eq!(explained["decision"], "leave-alone", "{name}");
                    assert_eq!(explained["reason"], reason.to_string(), "{name}");
                }
                Decision::Refuse(cause) => panic!("{name}: {cause}"),
            }
        }
    }
    assert_eq!(redirected, REDIRECTED, "pods that are redirected");
}

/// The pods of all manifests that are redirected if they have no init container.
const REDIRECTED: usize = 80;

/// The explanations of all manifests; manifests with the same text stand above it together.
fn explanations() -> String {
    let mut manifests_by_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in manifests() {
        for (flags, suffix) in [(&[][..], ""), (&["--ignore-init"][..], ", init container ignored")] {
            let out = explain(&path, flags);
            let text = [out.stderr, out.stdout].concat();
            let mut text = String::from_utf8(text).unwrap().replace(&path.display().to_string(), "FILE");
            for pod in pods(&std::fs::read_to_string(&path).unwrap()).unwrap_or_default() {
                text = text.replace(&format!("{}: ", pod.origin), "POD: ");
            }
            manifests_by_text.entry(text).or_default().push(format!("{}{suffix}", short(&path)));
        }
    }
    let block = |(text, names): (&String, &Vec<String>)| {
        let names: String = names.iter().map(|name| format!("# {name}\n")).collect();
        format!("{names}{text}\n")
    };
    let mut blocks: Vec<String> = manifests_by_text.iter().map(block).collect();
    blocks.sort();
    blocks.concat()
}

/// For review in a diff: the other test and `explanations.rs` check the content.
#[test]
fn the_explanations_are_those_in_the_repository() {
    let found = explanations();
    let expected = include_str!("explanations.txt");
    let new = Path::new(env!("CARGO_TARGET_TMPDIR")).join("explanations.txt");
    if found != expected {
        std::fs::write(&new, &found).unwrap();
    }
    let first = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "{first:?}; if the new text is right: cp {} installer/tests/shared/explanations.txt",
        new.display()
    );
}
