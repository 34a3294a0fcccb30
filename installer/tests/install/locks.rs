//! The lock that lets one process at a time change a node; unprivileged users cannot hold it.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use gybe_installer::host::apply::NodeLock;
use gybe_installer::host::desired::PutBack;
use gybe_installer::host::observe::LOCK;

use crate::ground::Ground;
use crate::wants::{chained, left};

const LIST: &str = "{\"name\":\"net\",\"plugins\":[{\"type\":\"calico\"}]}";
/// The uid and gid of an unprivileged user.
const NOBODY: u32 = 65534;

/// A `flock` process of an unprivileged user that holds the lock of a path until dropped.
struct Holder(Child);

impl Holder {
    #[expect(clippy::disallowed_methods, reason = "another user's process")]
    fn of(path: &Path) -> Self {
        let mut command = Command::new("flock");
        command.arg("--nonblock").arg(path).args(["sh", "-c", "echo held; read -r _"]);
        command.uid(NOBODY).gid(NOBODY).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("tests of locks need root and flock (util-linux)");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        Self(child)
    }

    #[expect(clippy::disallowed_methods, reason = "another user's process")]
    fn is_refused(path: &Path) -> bool {
        let mut command = Command::new("flock");
        command.arg("--nonblock").arg(path).arg("true").uid(NOBODY).gid(NOBODY).stderr(Stdio::null());
        !command.status().unwrap().success()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.stdin.take().unwrap().write_all(b"\n");
        let _ = self.0.wait();
    }
}

#[test]
fn a_user_who_locks_the_directory_stops_neither_repair_nor_uninstall_and_cannot_open_the_lock() {
    let ground = Ground::with(&[("10-a.conflist", LIST)]);
    let _holder = Holder::of(&ground.root.join("bin"));
    ground.settle(&chained(&ground.root));
    assert!(Holder::is_refused(&ground.root.join("bin").join(LOCK)));
    ground.put("10-a.conflist", LIST);
    ground.settle(&chained(&ground.root));
    assert_eq!(ground.chain().1, ["calico", "gybe-cni"]);
    ground.settle(&left(&ground.root, PutBack::Nothing));
    assert_eq!(ground.text("10-a.conflist"), LIST);
}

/// In a directory that other users may write, the lock file may have any owner, or not be a regular file.
#[test]
fn a_lock_file_that_others_can_open_is_replaced() {
    let others: [fn(&Path); 4] = [
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
    for (n, make) in others.iter().enumerate() {
        let ground = Ground::with(&[("10-a.conflist", LIST)]);
        let lock = ground.root.join("bin").join(LOCK);
        make(&lock);
        let holder = (n < 2).then(|| Holder::of(&lock));
        ground.settle(&chained(&ground.root));
        assert_eq!(ground.chain().1, ["calico", "gybe-cni"], "{n}");
        let there = lock.symlink_metadata().unwrap();
        assert!(there.is_file() && there.uid() == nix::unistd::geteuid().as_raw(), "{n}: {there:?}");
        assert_eq!(there.mode() & 0o777, 0o600, "{n}");
        drop(holder);
    }
}

#[test]
fn the_lock_file_is_created_with_the_first_change_and_removed_with_the_last_program() {
    let ground = Ground::with(&[("10-a.conflist", LIST)]);
    let lock = ground.root.join("bin").join(LOCK);
    ground.pass(&left(&ground.root, PutBack::Nothing));
    assert!(!lock.exists(), "nothing was to be changed");
    ground.settle(&chained(&ground.root));
    let turn = NodeLock::take(&ground.places().programs).unwrap();
    assert!(NodeLock::take(&ground.places().programs).is_err());
    drop(turn);
    assert!(lock.exists());
    ground.settle(&left(&ground.root, PutBack::Nothing));
    assert_eq!(ground.programs(), [""; 0]);
    assert!(!lock.exists());
}

/// A process that waited for the lock must not take the lock of a deleted file.
#[test]
fn a_lock_file_that_was_removed_is_not_held() {
    let ground = Ground::new();
    let (places, lock) = (ground.places(), ground.root.join("bin").join(LOCK));
    let turn = NodeLock::take(&places.programs).unwrap();
    fs::remove_file(&lock).unwrap();
    let next = NodeLock::take(&places.programs).unwrap();
    assert!(lock.exists() && NodeLock::take(&places.programs).is_err());
    drop((turn, next));
}
