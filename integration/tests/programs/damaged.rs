//! A program that is damaged during copying, in any bit or part, is never renamed to the plugin's name.

use crate::node::{LIST, Node, add};
use gybe_installer::host::apply::{ApplyError, FailedChange};
use gybe_installer::host::desired::DesiredState;
use gybe_installer::host::pass::{PassHistory, pass};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

const PAGE: usize = 4096;

/// Installs build 1, and returns its bytes and the desired state with build 2, whose image the test damages.
fn upgraded(test: &str) -> (Node, PassHistory, DesiredState, Vec<u8>) {
    let (node, mut memory) = (Node::new(test), PassHistory::default());
    assert!(pass(&node.places(), &node.wants("1"), &mut memory).unwrap().left.is_done());
    let wanted = node.wants("2");
    let before = fs::read(node.image("1")).unwrap();
    (node, memory, wanted, before)
}

/// Asserts that the damaged program is refused because of its hash, and that the previous one stays.
fn refused(node: &Node, wanted: &DesiredState, memory: &mut PassHistory) {
    // A changed desired state resets the retry backoff.
    memory.desired_state_changed();
    let failed = pass(&node.places(), wanted, memory).unwrap().applied.failed;
    assert!(
        matches!(failed.as_slice(), [FailedChange { why: ApplyError::Damaged { .. }, .. }]),
        "{failed:?}"
    );
    assert_eq!(
        fs::read_dir(node.0.join("bin")).unwrap().count(),
        2,
        "the lock file, and nothing else is left beside it"
    );
}

fn serves(node: &Node, before: &[u8]) {
    assert!(fs::read(node.plugin()).unwrap() == before, "another program");
    assert!(node.conf().contains("gybe-cni") && node.conf() != LIST);
    add(&node.plugin());
}

#[test]
fn f10_a_bit_flipped_in_any_page_of_the_plugin_is_found() {
    let (node, mut memory, wanted, before) = upgraded("flipped");
    let source = File::options().read(true).write(true).open(node.image("2")).unwrap();
    let pages = before.len().div_ceil(PAGE);
    for page in 0..pages {
        // Another byte in each page, and another bit.
        let at = (page * PAGE + page * 37 % PAGE).min(before.len() - 1);
        let mut byte = [0];
        source.read_exact_at(&mut byte, at as u64).unwrap();
        source.write_all_at(&[byte[0] ^ (1 << (page % 8))], at as u64).unwrap();
        refused(&node, &wanted, &mut memory);
        source.write_all_at(&byte, at as u64).unwrap();
    }
    serves(&node, &before);
    memory.desired_state_changed();
    assert!(pass(&node.places(), &wanted, &mut memory).unwrap().left.is_done());
    assert!(fs::read(node.plugin()).unwrap() == fs::read(node.image("2")).unwrap());
    println!("a bit flipped in each of {pages} pages");
}

#[test]
fn f10_a_truncated_plugin_is_never_accepted() {
    let (node, mut memory, wanted, before) = upgraded("cut");
    let source = File::options().write(true).open(node.image("2")).unwrap();
    let ends: Vec<usize> = (0..=before.len()).step_by(16 * PAGE).chain([before.len()]).collect();
    for end in ends.iter().rev() {
        source.set_len(*end as u64).unwrap();
        refused(&node, &wanted, &mut memory);
    }
    serves(&node, &before);
    println!("cut off at {} places", ends.len());
}
