//! F12: without inotify changes are detected by polling.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use gybe_installer::host::watch::{DirectoryWatch, WakeReason, WatchMode};

use crate::ground::Ground;
use crate::scene::traced;

/// Runs in the traced process: writes a file and waits until the watch reports it.
pub(crate) fn watch(root: &Path) -> ExitCode {
    let mut watch = DirectoryWatch::new([root.join("net.d")]);
    println!("{:?}", watch.mode());
    let told = watch.mode() == WatchMode::Inotify;
    std::fs::write(root.join("net.d/x"), "x").unwrap();
    let woken = watch.wait(Duration::from_secs(30), None);
    if woken == WakeReason::Changed && !told { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

pub(crate) fn f12_without_inotify_changes_are_seen() {
    for inject in ["inject=inotify_init1:error=EMFILE", "inject=inotify_add_watch:error=ENOSPC"] {
        let ground = Ground::new();
        let output = traced(&ground, &["watch"], &["-o", "/dev/null", "-e", inject]);
        assert!(output.status.success(), "{inject}: {output:?}");
    }
    println!("without inotify: changes are detected by polling");
}

/// The same without fault injection: in a user namespace whose `user.max_inotify_instances` is 0.
pub(crate) fn f12_where_the_kernel_grants_no_inotify_changes_are_seen() {
    let ground = Ground::new();
    let limited = "echo 0 > /proc/sys/user/max_inotify_instances && exec \"$0\" watch \"$1\"";
    #[expect(clippy::disallowed_methods, reason = "unshare makes the namespace")]
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "sh", "-c", limited]);
    let output = unshare.arg(std::env::current_exe().unwrap()).arg(&ground.root).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "Polling(EMFILE)\n");
    println!("with max_inotify_instances 0: changes are detected by polling");
}
