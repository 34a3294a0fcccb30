//! F07: every file is synced before its rename, and its directory after it.

use crate::scene::{ALL, calls};

pub(crate) fn f07_every_rename_is_synced_before_and_after() {
    let mut renames = 0;
    for scene in ALL {
        let calls = calls(&scene.prepared(), scene.act);
        let is = |n: usize, name: &str| calls.get(n).is_some_and(|call| call.is(name));
        for n in (0..calls.len()).filter(|n| is(*n, "renameat2") || is(*n, "renameat")) {
            renames += 1;
            let temporary_is_new = calls[n].text.contains(".gybe.tmp\", ");
            let made = (0..n).rev().find(|n| calls[*n].text.contains("O_CREAT"));
            let synced = (0..n).rev().find(|n| is(*n, "fsync"));
            assert!(!temporary_is_new || synced > made, "{}: {}", scene.name, calls[n].text);
            let next = (n + 1..calls.len()).find(|n| is(*n, "renameat2") || is(*n, "renameat"));
            let then = (n + 1..next.unwrap_or(calls.len())).any(|n| is(n, "fsync"));
            assert!(then, "{}: not synced after {}", scene.name, calls[n].text);
        }
        f07_any_part_of_an_unsynced_file_does_no_harm(scene);
    }
    println!("{renames} renames, each synced before and after");
}

/// After a power loss any part of an unsynced file may exist under the temporary name.
fn f07_any_part_of_an_unsynced_file_does_no_harm(scene: crate::scene::Scene) {
    let wanted = scene.undisturbed();
    let longest = wanted.0.iter().map(|(_, bytes)| bytes.as_slice()).max_by_key(|bytes| bytes.len()).unwrap();
    for end in 0..=longest.len() {
        let ground = scene.prepared();
        ground.put(".gybe.tmp", &longest[..end]);
        std::fs::write(ground.root.join("bin/.gybe.tmp"), &longest[..end]).unwrap();
        scene.assert_node_works(&ground, "with a part of a file");
        if end % 16 == 0 {
            assert_eq!(scene.finish(&ground), wanted, "{} after {end} bytes", scene.name);
        }
    }
}
