//! What is known about a node, as programs find it out, keep it and go by it. `/run` is each test's own.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that meets what it did not expect has nothing better to do; JSON that lacks a member is null"
)]

mod checking;
mod knowing;
mod status;

use gybe_integration::add::{Call, Place};
use gybe_integration::complaint::Complaint;
use gybe_integration::programs::{Run, path_of_ours};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// Long enough that what does not work is asked again.
const LATER: Duration = Duration::from_secs(31);

fn gybe(place: &Place, words: &str, stdin: &str) -> Result<Run, Complaint> {
    place.sh(&format!("exec {} {words}", path_of_ours("gybe")?.display()), stdin)
}

fn kept(place: &Place) -> PathBuf {
    place.run().join("gybe/probe.json")
}

fn change(place: &Place, pointer: &str, value: Value) -> Result<(), Complaint> {
    let mut known: Value = serde_json::from_str(&fs::read_to_string(kept(place))?)?;
    *known.pointer_mut(pointer).ok_or_else(|| Complaint::that(format!("no {pointer}")))? = value;
    Ok(fs::write(kept(place), known.to_string())?)
}

fn refused(why: &str) -> Value {
    json!({ "finding": "refused", "why": why, "errno": 2, "object": null, "hint": null })
}

/// Makes what is known as old as if that had passed since.
fn later(place: &Place) -> Result<(), Complaint> {
    let file = fs::OpenOptions::new().write(true).open(kept(place))?;
    Ok(file.set_modified(SystemTime::now() - LATER)?)
}

/// How many namespaces a command makes, each of them for one attempt.
fn namespaces(place: &Place, command: &str) -> Result<usize, Complaint> {
    let record = place.path().join("record");
    let strace = format!("strace -f -qq -e trace=unshare -o {} ", record.display());
    let ran = place.sh(&format!("exec {strace} {command}"), "")?;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    attempts(place)
}

/// The same of a call, and what it came to.
fn attempted(place: &Place, call: &Call) -> Result<(usize, Run), Complaint> {
    let record = place.path().join("record");
    let ran = call.make(place, &format!("strace -f -qq -e trace=unshare -o {}", record.display()))?;
    Ok((attempts(place)?, ran))
}

fn attempts(place: &Place) -> Result<usize, Complaint> {
    // iptables' own thread unshares its mounts.
    let record = fs::read_to_string(place.path().join("record"))?;
    Ok(record.lines().filter(|line| line.contains("unshare(CLONE_NEWNET)")).count())
}
