//! F11: every writing system call fails once with each usual error: existing files stay, the message names the path and
//! a remedy, and the next pass completes the change.

use crate::scene::{Scene, calls, traced};

const WRITING: [&str; 7] = ["write", "fsync", "fchmod", "renameat2", "renameat", "unlinkat", "mkdirat"];

pub(crate) fn f11_refused_at_every_call_that_writes_the_node_works(scene: Scene) {
    let wanted = scene.undisturbed();
    let mut calls = calls(&scene.prepared(), scene.act);
    calls.retain(|call| WRITING.contains(&call.name()));
    let mut told = 0;
    for error in ["ENOSPC", "EROFS", "EACCES"] {
        for call in &calls {
            let ground = scene.prepared();
            let strike = call.struck(&format!("error={error}"));
            let output = traced(&ground, &["one-pass", scene.act], &["-o", "/dev/null", "-e", &strike]);
            let said = String::from_utf8(output.stdout.clone()).unwrap();
            let when = format!("refused with {error}: {}: {said}", call.text);
            // A failed call during cleanup or a program's trial run need not fail the pass.
            if output.status.code() == Some(3) {
                assert!(said.contains(ground.root.to_str().unwrap()), "{} {when}", scene.name);
                assert!(said.contains(error) && !said.contains("hint: none"), "{} {when}", scene.name);
                told += 1;
            } else {
                assert!(output.status.success(), "{} {when}: {output:?}", scene.name);
            }
            scene.assert_node_works(&ground, &when);
            assert_eq!(scene.finish(&ground), wanted, "{} {when}", scene.name);
        }
    }
    println!("{}: {} writing calls failed with 3 errors each, {told} reported", scene.name, calls.len());
}
