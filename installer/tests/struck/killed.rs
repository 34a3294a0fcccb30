//! The installer killed before each of its system calls: the node works, and the next pass completes the change.

use std::os::unix::process::ExitStatusExt;

use crate::scene::{Scene, calls, traced};

pub(crate) fn f07_f14_killed_before_every_call_the_node_works(scene: Scene) {
    let wanted = scene.undisturbed();
    let calls = calls(&scene.prepared(), scene.act);
    let mut missed = Vec::new();
    for (n, call) in calls.iter().enumerate() {
        let ground = scene.prepared();
        let strike = call.struck("signal=KILL");
        let output = traced(&ground, &["one-pass", scene.act], &["-o", "/dev/null", "-e", &strike]);
        let when = format!("killed before call {n}: {}", call.text);
        if output.status.signal() != Some(9) && output.status.code() != Some(137) {
            missed.push(&call.text);
        }
        scene.assert_node_works(&ground, &when);
        assert_eq!(scene.finish(&ground), wanted, "{} {when}", scene.name);
    }
    // The number of calls for waiting and memory varies between runs; that of calls on files must not.
    let of_files =
        ["open", "read", "write", "rename", "unlink", "fsync", "mkdir", "fch", "close", "newfstat"];
    missed.retain(|call| of_files.iter().any(|name| call.starts_with(name)));
    assert!(missed.is_empty(), "{}: never reached: {missed:#?}", scene.name);
    println!("{}: killed before each of {} calls", scene.name, calls.len());
}
