//! The installer with a fault injected at every one of its system calls: killed before it (F07, F14), or the call fails
//! (F11).
//!
//! A program without cargo's test harness, whose threads would add system calls: it runs itself under strace.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
#![allow(clippy::print_stdout, reason = "a program without a test harness prints its own report")]

#[path = "../install/ground.rs"]
#[allow(dead_code, reason = "shared with the tests of other targets")]
mod ground;
mod killed;
mod refused;
mod scene;
mod side_by_side;
mod synced;
#[path = "../install/wants.rs"]
#[allow(dead_code, reason = "shared with the tests of other targets")]
mod wants;
mod watched;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["one-pass", root, act] => scene::one_pass(root.as_ref(), act),
        ["watch", root] => watched::watch(root.as_ref()),
        ["scene", name] => {
            let scene = scene::named(name);
            killed::f07_f14_killed_before_every_call_the_node_works(scene);
            refused::f11_refused_at_every_call_that_writes_the_node_works(scene);
            ExitCode::SUCCESS
        }
        // Arguments from cargo are ignored: the whole program is one test.
        _ => {
            side_by_side::every_scene();
            synced::f07_every_rename_is_synced_before_and_after();
            watched::f12_without_inotify_changes_are_seen();
            watched::f12_where_the_kernel_grants_no_inotify_changes_are_seen();
            ExitCode::SUCCESS
        }
    }
}
