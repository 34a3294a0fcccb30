//! A CNI directory that is renamed on the host while the agent's pod has it mounted.

use crate::node::{LIST, Node, with_own_mounts};
use gybe_installer::host::directory::Directory;
use gybe_installer::host::observe::NodeDirectories;
use gybe_installer::host::pass::{PassHistory, pass};
use gybe_installer::host::problem::Problem;
use nix::mount::{MsFlags, mount};
use std::fs;
use std::path::Path;

fn mounted(of: &Path, at: &Path) {
    fs::create_dir_all(at).unwrap();
    mount(Some(of), at, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
}

#[test]
fn f13_a_directory_that_is_renamed_on_the_host_counts_as_deleted() {
    let node = Node::new("renamed");
    with_own_mounts(|| {
        for (of, folder) in [(Directory::Conf, "net.d"), (Directory::Programs, "bin")] {
            let pod = node.0.join(format!("pod-{folder}"));
            let (conf, programs) = (pod.join("net.d"), pod.join("bin"));
            mounted(&node.places().conf, &conf);
            mounted(&node.places().programs, &programs);
            let (places, mut memory) =
                (NodeDirectories { conf, programs, ..node.places() }, PassHistory::default());
            let mut left = || pass(&places, &node.wants("1"), &mut memory).unwrap().left;
            assert!(left().is_done(), "{folder}");
            let (name, aside) = (node.0.join(folder), node.0.join("aside"));
            fs::rename(&name, &aside).unwrap();
            fs::create_dir(&name).unwrap();
            fs::write(name.join("20-b.conflist"), LIST).unwrap();
            assert_eq!(left().problems, [Problem::Deleted(of)]);
            fs::remove_dir_all(&name).unwrap();
            fs::rename(&aside, &name).unwrap();
            assert!(left().is_done(), "{folder} has its name again");
        }
    });
}
