//! What is known about a node, as programs find it out, keep it and go by it. `/run` is each test's own.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that meets what it did not expect has nothing better to do; JSON that lacks a member is null"
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

/// Long enough that what does not work is asked again.
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

/// Makes what is known as old as if that had passed since.
fn later(place: &PluginDir) -> Result<(), Failure> {
    let file = fs::OpenOptions::new().write(true).open(kept(place))?;
    Ok(file.set_modified(SystemTime::now() - LATER)?)
}

/// How many namespaces a command makes, each of them for one attempt.
fn namespaces(place: &PluginDir, command: &str) -> Result<usize, Failure> {
    let record = place.path().join("record");
    let strace = format!("strace -f -qq -e trace=unshare -o {} ", record.display());
    let ran = place.sh(&format!("exec {strace} {command}"), "")?;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    attempts(place)
}

/// The same of a call, and what it came to.
fn attempted(place: &PluginDir, call: &PluginCall) -> Result<(usize, Run), Failure> {
    let record = place.path().join("record");
    let ran = call.run(place, &format!("strace -f -qq -e trace=unshare -o {}", record.display()))?;
    Ok((attempts(place)?, ran))
}

fn attempts(place: &PluginDir) -> Result<usize, Failure> {
    // iptables' own thread unshares its mounts.
    let record = fs::read_to_string(place.path().join("record"))?;
    Ok(record.lines().filter(|line| line.contains("unshare(CLONE_NEWNET)")).count())
}
