//! Runs the scenarios concurrently, one for each processor: strace and its tracee run alternately.

use std::num::NonZero;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use crate::scene::{ALL, Scene};

pub(crate) fn every_scene() {
    let queue = Mutex::new(ALL.into_iter());
    let next = || queue.lock().unwrap().next();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| std::iter::from_fn(next).for_each(in_a_process_of_its_own));
        }
    });
}

/// Runs a scenario in a process of its own: between fork and exec a child holds all open files of its parent, so in one
/// shared process a scenario would find its lock held and its programs busy.
fn in_a_process_of_its_own(scene: Scene) {
    #[expect(clippy::disallowed_methods, reason = "runs this program for one scenario")]
    let status = Command::new(std::env::current_exe().unwrap()).args(["scene", scene.name]).status().unwrap();
    assert!(status.success(), "{}: {status}", scene.name);
}
