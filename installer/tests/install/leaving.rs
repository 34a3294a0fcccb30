//! Uninstall with running sandboxes, with other owners' changes, and with conf files that Gybe cannot change.

use std::fs;

use gybe_installer::host::desired::PutBack;
use gybe_installer::host::problem::Problem;

use crate::ground::Ground;
use crate::lives::{LIST, SINGLE};
use crate::wants::{chained, left, name};

#[test]
fn uninstall_keeps_only_a_single_conf_that_was_written_again() {
    let ground = Ground::with(&[("10-db.conf", SINGLE)]);
    ground.settle(&chained(&ground.root));
    ground.put("10-db.conf", SINGLE);
    ground.settle(&left(&ground.root, PutBack::Nothing));
    assert_eq!(ground.files().into_keys().collect::<Vec<_>>(), ["10-db.conf"]);
}

#[test]
fn uninstall_keeps_another_owners_change_of_a_list() {
    let ground = Ground::with(&[("10-db.conf", SINGLE)]);
    ground.settle(&chained(&ground.root));
    let theirs = ground.text("10-db.conflist").replace("cni0", "cni9").replace("\n  ", "\n\t");
    ground.put("10-db.conflist", theirs);
    ground.settle(&chained(&ground.root));
    ground.settle(&left(&ground.root, PutBack::Nothing));
    let files = ground.files();
    assert_eq!(files.keys().collect::<Vec<_>>(), ["10-db.conflist"]);
    assert_eq!(ground.chain().1, ["bridge"]);
    assert!(ground.text("10-db.conflist").contains("cni9"));
}

#[test]
fn f29_the_plugin_stays_until_no_living_sandbox_needs_it() {
    let ground = Ground::with(&[("10-calico.conflist", LIST)]);
    ground.settle(&chained(&ground.root));
    // {"name":"n","plugins":[{"type":"a"},{"type":"gybe-cni"}]}
    let config = "eyJuYW1lIjoibiIsInBsdWdpbnMiOlt7InR5cGUiOiJhIn0seyJ0eXBlIjoiZ3liZS1jbmkifV19";
    let result = ground.root.join("results/n-pod-eth0");
    fs::write(&result, format!("{{\"kind\":\"cniCacheV1\",\"config\":\"{config}\"}}")).unwrap();
    ground.settle(&left(&ground.root, PutBack::Nothing));
    assert_eq!(ground.text("10-calico.conflist"), LIST);
    assert_eq!(ground.programs(), ["gybe-cni"]);
    assert!(fs::read_to_string(ground.root.join("bin/gybe-cni")).unwrap().contains("# tombstone"));
    fs::remove_file(result).unwrap();
    ground.settle(&left(&ground.root, PutBack::Nothing));
    assert!(ground.programs().is_empty());
}

#[test]
fn f29_a_cache_that_cannot_be_read_keeps_the_plugin() {
    let ground = Ground::with(&[("10-calico.conflist", LIST)]);
    ground.settle(&chained(&ground.root));
    fs::remove_dir(ground.root.join("results")).unwrap();
    ground.settle(&left(&ground.root, PutBack::Nothing));
    assert_eq!(ground.programs(), ["gybe-cni"]);
}

#[test]
fn uninstall_keeps_every_program_that_an_unchangeable_conf_file_names() {
    let broken = "{\"plugins\":[{\"type\":\"gybe-cni\"},]}";
    let ground = Ground::with(&[("10-calico.conflist", LIST), ("90-x.conflist", broken)]);
    ground.settle(&chained(&ground.root));
    let pass = ground.pass(&left(&ground.root, PutBack::Nothing));
    assert_eq!(pass.left.problems, [Problem::StillNamed(name("90-x.conflist"), "gybe-cni".into())]);
    assert_eq!(ground.programs(), ["gybe", "gybe-cni"]);
}
