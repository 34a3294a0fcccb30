//! The probe report: programs probe the node, store the report and choose a backend by it. Each test has its own
//! `/run`.
#![cfg(test)]

mod check;
mod report;

use gybe_integration::failure::Failure;
use gybe_integration::plugin_call::{PluginCall, PluginDir};
use gybe_integration::programs::{Run, path_of_ours};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// After this time failed probes are repeated.
const RETRY_AFTER: Duration = Duration::from_secs(31);

fn gybe(directory: &PluginDir, words: &str, stdin: &str) -> Result<Run, Failure> {
    directory.sh(&format!("exec {} {words}", path_of_ours("gybe")?.display()), stdin)
}

fn report_path(directory: &PluginDir) -> PathBuf {
    directory.run().join("gybe/probe.json")
}

/// Sets the value at this JSON pointer of the stored report.
fn change_report(directory: &PluginDir, pointer: &str, value: Value) -> Result<(), Failure> {
    let mut report: Value = serde_json::from_str(&fs::read_to_string(report_path(directory))?)?;
    *report.pointer_mut(pointer).ok_or_else(|| Failure::new(format!("no {pointer}")))? = value;
    Ok(fs::write(report_path(directory), report.to_string())?)
}

fn refused_finding(why: &str) -> Value {
    json!({ "finding": "refused", "why": why, "errno": 2, "object": null, "hint": null })
}

/// Sets the stored report's modification time back by [`RETRY_AFTER`].
fn age_report(directory: &PluginDir) -> Result<(), Failure> {
    let file = fs::OpenOptions::new().write(true).open(report_path(directory))?;
    Ok(file.set_modified(SystemTime::now() - RETRY_AFTER)?)
}

/// Runs a command and returns the number of network namespaces that it created: one for each probe.
fn count_probes(directory: &PluginDir, command: &str) -> Result<usize, Failure> {
    let record = directory.path().join("record");
    let strace = format!("strace -f -qq -e trace=unshare -o {} ", record.display());
    let ran = directory.sh(&format!("exec {strace} {command}"), "")?;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    recorded_probes(directory)
}

/// As [`count_probes`], for a call of the plugin; also returns the call's result.
fn call_and_count_probes(directory: &PluginDir, call: &PluginCall) -> Result<(usize, Run), Failure> {
    let record = directory.path().join("record");
    let ran = call.run(directory, &format!("strace -f -qq -e trace=unshare -o {}", record.display()))?;
    Ok((recorded_probes(directory)?, ran))
}

fn recorded_probes(directory: &PluginDir) -> Result<usize, Failure> {
    // The thread that runs iptables also calls unshare, for its mounts; only network namespaces count.
    let record = fs::read_to_string(directory.path().join("record"))?;
    Ok(record.lines().filter(|line| line.contains("unshare(CLONE_NEWNET)")).count())
}
