//! The probe report: programs probe the node, store the report and choose a backend by it. Each test has its own `/run`.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking; indexing a missing JSON member yields null"
)]

mod checking;
mod knowing;
mod status;

use gybe_integration::failure::Failure;
use gybe_integration::plugin_call::{PluginCall, PluginDir};
use gybe_integration::programs::{Run, path_of_ours};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// After this time failed probes are repeated.
const LATER: Duration = Duration::from_secs(31);

fn gybe(place: &PluginDir, words: &str, stdin: &str) -> Result<Run, Failure> {
    place.sh(&format!("exec {} {words}", path_of_ours("gybe")?.display()), stdin)
}

fn kept(place: &PluginDir) -> PathBuf {
    place.run().join("gybe/probe.json")
}

fn change(place: &PluginDir, pointer: &str, value: Value) -> Result<(), Failure> {
    let mut known: Value = serde_json::from_str(&fs::read_to_string(kept(place))?)?;
    *known.pointer_mut(pointer).ok_or_else(|| Failure::new(format!("no {pointer}")))? = value;
    Ok(fs::write(kept(place), known.to_string())?)
}

fn refused(why: &str) -> Value {
    json!({ "finding": "refused", "why": why, "errno": 2, "object": null, "hint": null })
}

/// Sets the stored report's modification time back by [`LATER`].
fn later(place: &PluginDir) -> Result<(), Failure> {
    let file = fs::OpenOptions::new().write(true).open(kept(place))?;
    Ok(file.set_modified(SystemTime::now() - LATER)?)
}

/// Runs a command and returns the number of network namespaces it created: one for each probe.
fn namespaces(place: &PluginDir, command: &str) -> Result<usize, Failure> {
    let record = place.path().join("record");
    let strace = format!("strace -f -qq -e trace=unshare -o {} ", record.display());
    let ran = place.sh(&format!("exec {strace} {command}"), "")?;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    attempts(place)
}

/// As [`namespaces`], for a call of the plugin; also returns its result.
fn attempted(place: &PluginDir, call: &PluginCall) -> Result<(usize, Run), Failure> {
    let record = place.path().join("record");
    let ran = call.run(place, &format!("strace -f -qq -e trace=unshare -o {}", record.display()))?;
    Ok((attempts(place)?, ran))
}

fn attempts(place: &PluginDir) -> Result<usize, Failure> {
    // The thread that runs iptables also calls unshare, for its mounts; only network namespaces count.
    let record = fs::read_to_string(place.path().join("record"))?;
    Ok(record.lines().filter(|line| line.contains("unshare(CLONE_NEWNET)")).count())
}
