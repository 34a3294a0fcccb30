//! The lock that lets one process at a time change a node; unprivileged users cannot hold it.

use crate::test_node::TestNode;
use crate::test_node::{chained, uninstalled};
use gybe_installer::host::apply::NodeLock;
use gybe_installer::host::desired::PutBack;
use gybe_installer::host::observe::LOCK;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const LIST: &str = "{\"name\":\"net\",\"plugins\":[{\"type\":\"calico\"}]}";
/// The uid and gid of an unprivileged user.
const NOBODY: u32 = 65534;

/// Returns a `flock` of an unprivileged user on a path. It opens the path from the directory that contains it, because the
/// user may have no access to a directory above: root's home, for instance.
#[expect(clippy::disallowed_methods, reason = "another user's process")]
fn flock_of_nobody(path: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".into()]);
    command.args(["flock", "--nonblock"]).arg(path.file_name().unwrap());
    command.current_dir(path.parent().unwrap());
    command
}

/// A `flock` process of an unprivileged user that holds the lock of a path until dropped.
struct Holder(Child);

impl Holder {
    fn of(path: &Path) -> Self {
        let mut command = flock_of_nobody(path);
        command.args(["sh", "-c", "echo held; read -r _"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("tests of locks need root, setpriv and flock (util-linux)");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        Self(child)
    }

    fn is_refused(path: &Path) -> bool {
        !flock_of_nobody(path).arg("true").stderr(Stdio::null()).status().unwrap().success()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.stdin.take().unwrap().write_all(b"\n");
        let _ = self.0.wait();
    }
}

#[test]
fn a_lock_on_the_directory_by_another_user_stops_neither_repair_nor_uninstall() {
    let node = TestNode::with(&[("10-a.conflist", LIST)]);
    let _holder = Holder::of(&node.root.join("bin"));
    node.settle(&chained(&node.root));
    assert!(Holder::is_refused(&node.root.join("bin").join(LOCK)));
    node.put("10-a.conflist", LIST);
    node.settle(&chained(&node.root));
    assert_eq!(node.chain().1, ["calico", "gybe-cni"]);
    node.settle(&uninstalled(&node.root, PutBack::Nothing));
    assert_eq!(node.text("10-a.conflist"), LIST);
}

/// In a directory that other users may write, the lock file may have any owner, or not be a regular file.
#[test]
fn a_lock_file_that_other_users_can_open_is_replaced() {
    let lock_files: [fn(&Path); 4] = [
        |lock| {
            fs::write(lock, "").unwrap();
            chown(lock, Some(NOBODY), Some(NOBODY)).unwrap();
        },
        |lock| {
            fs::write(lock, "")
                .and_then(|()| fs::set_permissions(lock, Permissions::from_mode(0o644)))
                .unwrap();
        },
        |lock| symlink("/etc/passwd", lock).unwrap(),
        |lock| nix::unistd::mkfifo(lock, nix::sys::stat::Mode::S_IRUSR).unwrap(),
    ];
    for (n, make) in lock_files.iter().enumerate() {
        let node = TestNode::with(&[("10-a.conflist", LIST)]);
        let lock = node.root.join("bin").join(LOCK);
        make(&lock);
        let holder = (n < 2).then(|| Holder::of(&lock));
        node.settle(&chained(&node.root));
        assert_eq!(node.chain().1, ["calico", "gybe-cni"], "{n}");
        let there = lock.symlink_metadata().unwrap();
        assert!(there.is_file() && there.uid() == nix::unistd::geteuid().as_raw(), "{n}: {there:?}");
        assert_eq!(there.mode() & 0o777, 0o600, "{n}");
        drop(holder);
    }
}

#[test]
fn the_lock_file_is_created_with_the_first_change_and_removed_with_the_last_program() {
    let node = TestNode::with(&[("10-a.conflist", LIST)]);
    let lock = node.root.join("bin").join(LOCK);
    node.pass(&uninstalled(&node.root, PutBack::Nothing));
    assert!(!lock.exists(), "nothing had to be changed");
    node.settle(&chained(&node.root));
    let lock_held = NodeLock::take(&node.directories().programs).unwrap();
    assert!(NodeLock::take(&node.directories().programs).is_err());
    drop(lock_held);
    assert!(lock.exists());
    node.settle(&uninstalled(&node.root, PutBack::Nothing));
    assert_eq!(node.programs(), [""; 0]);
    assert!(!lock.exists());
}

/// A process that waited for the lock must not take the lock of a deleted file.
#[test]
fn the_lock_of_a_removed_file_does_not_count() {
    let node = TestNode::new();
    let (directories, lock) = (node.directories(), node.root.join("bin").join(LOCK));
    let lock_held = NodeLock::take(&directories.programs).unwrap();
    fs::remove_file(&lock).unwrap();
    let next = NodeLock::take(&directories.programs).unwrap();
    assert!(lock.exists() && NodeLock::take(&directories.programs).is_err());
    drop((lock_held, next));
}
