//! A full disk: existing files stay and work, and the first pass with free space completes the change.

use crate::node::{LIST, Node, add, with_own_mounts};
use gybe_installer::host::apply::{ApplyError, FailedChange};
use gybe_installer::host::pass::{Pass, PassHistory, pass};
use gybe_netfilter::hint::Hint;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::thread;

fn small_disk(at: &Path, options: &str) {
    mount(Some("small"), at, Some("tmpfs"), MsFlags::empty(), Some(options)).unwrap();
}

/// Fills the file system.
fn fill(directory: &Path) {
    let mut ballast = File::create(directory.join("ballast")).unwrap();
    while ballast.write(&[0; 4096]).is_ok_and(|written| written > 0) {}
}

fn the_disk_is_full(pass: &Pass) {
    let [FailedChange { why: ApplyError::System { why: Errno::ENOSPC, .. }, .. }] =
        pass.applied.failed.as_slice()
    else {
        panic!("{:?}", pass.applied.failed)
    };
    assert!(pass.applied.failed[0].why.hint().is_some());
}

#[test]
fn f11_on_a_full_disk_the_old_program_serves_until_there_is_room() {
    let node = Node::new("full-bin");
    with_own_mounts(|| {
        // Room for one and a half programs.
        let size = fs::metadata(node.image("1")).unwrap().len() * 3 / 2;
        small_disk(&node.0.join("bin"), &format!("size={size}"));
        let (places, mut memory) = (node.places(), PassHistory::default());
        assert!(pass(&places, &node.wants("1"), &mut memory).unwrap().left.is_done());
        fs::write(node.0.join("net.d/10-a.conflist"), LIST).unwrap();
        let full = pass(&places, &node.wants("2"), &mut memory).unwrap();
        the_disk_is_full(&full);
        assert!(fs::read(node.plugin()).unwrap() == fs::read(node.image("1")).unwrap());
        assert!(node.conf().contains("gybe-cni"), "the chain is healed all the same");
        add(&node.plugin());
        mount(None::<&str>, &places.programs, None::<&str>, MsFlags::MS_REMOUNT, Some("size=64m")).unwrap();
        // The agent does not retry before the backoff ends.
        thread::sleep(full.due.unwrap());
        assert!(pass(&places, &node.wants("2"), &mut memory).unwrap().left.is_done());
        assert!(fs::read(node.plugin()).unwrap() == fs::read(node.image("2")).unwrap());
    });
}

#[test]
fn f11_on_a_full_disk_the_primarys_file_stays_as_it_is() {
    let node = Node::new("full-conf");
    with_own_mounts(|| {
        let (conf, mut memory) = (node.0.join("net.d"), PassHistory::default());
        small_disk(&conf, "size=64k");
        fs::write(conf.join("10-a.conflist"), LIST).unwrap();
        fill(&conf);
        the_disk_is_full(&pass(&node.places(), &node.wants("1"), &mut memory).unwrap());
        assert_eq!(node.conf(), LIST);
        fs::remove_file(conf.join("ballast")).unwrap();
        assert!(pass(&node.places(), &node.wants("1"), &mut memory).unwrap().left.is_done());
        assert!(node.conf().contains("gybe-cni"));
    });
}
