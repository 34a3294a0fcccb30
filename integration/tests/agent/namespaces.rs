//! An ADD writes to the namespace that CNI_NETNS named when the runtime called, and never to the plugin's own.

use crate::ground::{inspected, pod};
use gybe_integration::plugin_call::{PluginCall, PluginDir};
use gybe_integration::programs::run;
use gybe_test_support::wait_until;
use nix::sys::socket::{getsockopt, sockopt};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;

/// Where an ADD waits while the sandbox ends, and the next sandbox gets its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    ForTheSocket,
    ForTheAnswer,
}

#[test]
fn the_namespace_that_the_path_named_before_any_wait_is_redirected_and_no_other() {
    for wait in [Wait::ForTheSocket, Wait::ForTheAnswer] {
        let (place, meant, next) = (PluginDir::new("agent-namespaces"), pod(), pod());
        let (path, socket) = (place.path().join("netns"), place.run().join("facts.sock"));
        symlink(meant.path(), &path).unwrap();
        let mut add = PluginCall::add(&meant, &place).unwrap().with_backend("nft");
        add.env.insert("CNI_NETNS".into(), path.display().to_string());
        add.stdin["facts"] = json!({ "socket": socket, "deadline_ms": 60_000 });
        let replacement = place.path().join("netns.new");
        symlink(next.path(), &replacement).unwrap();
        let early = (wait == Wait::ForTheAnswer).then(|| UnixListener::bind(&socket).unwrap());
        let ran = thread::scope(|scope| {
            let adding = scope.spawn(|| add.run(&place, "").unwrap());
            let listener = early.unwrap_or_else(|| {
                wait_until("the plugin waits for the socket", || any_process_watches(&place.run()));
                fs::rename(&replacement, &path).unwrap();
                UnixListener::bind(&socket).unwrap()
            });
            let (mut plugin, _) = listener.accept().unwrap();
            BufReader::new(&plugin).read_line(&mut String::new()).unwrap();
            if wait == Wait::ForTheAnswer {
                let pid = getsockopt(&plugin, sockopt::PeerCredentials).unwrap().pid();
                wait_until("the plugin has opened the namespace", || has_open(pid, &meant.path()));
                fs::rename(&replacement, &path).unwrap();
            }
            let pod: Value = serde_json::from_str(include_str!("../../../examples/pod.json")).unwrap();
            plugin.write_all(format!("{}\n", json!({ "version": 1, "pod": pod })).as_bytes()).unwrap();
            adding.join().unwrap()
        });
        assert_eq!(ran.code, Some(0), "{wait:?}: {ran:?}");
        assert!(inspected(&meant).contains("outbound-to-proxy"), "{wait:?}: {}", inspected(&meant));
        assert!(inspected(&next).starts_with("no rules of Gybe"), "{wait:?}: {}", inspected(&next));
    }
}

/// Reports whether the process has this file open.
fn has_open(pid: i32, file: &Path) -> bool {
    let file = fs::metadata(file).unwrap();
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|fd| fs::metadata(fd.path()).ok())
        .any(|open| (open.dev(), open.ino()) == (file.dev(), file.ino()))
}

/// Reports whether a process has an inotify watch on the directory.
fn any_process_watches(directory: &Path) -> bool {
    let inode = format!(" ino:{:x} ", fs::metadata(directory).unwrap().ino());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let descriptors = processes.filter_map(|process| fs::read_dir(process.path().join("fdinfo")).ok());
    descriptors
        .flatten()
        .flatten()
        .filter_map(|descriptor| fs::read_to_string(descriptor.path()).ok())
        .any(|text| text.lines().any(|line| line.starts_with("inotify wd:") && line.contains(&inode)))
}

/// At the plugin's first stat the path does not exist; when the plugin opens it, it leads to the node's namespace, for
/// which the test uses one of its own.
#[test]
fn a_path_that_leads_to_the_plugins_own_namespace_only_when_it_is_opened_is_refused() {
    let (place, node) = (PluginDir::new("agent-own-namespace"), pod());
    let path = node.path().display().to_string();
    let add = PluginCall::add(&node, &place).unwrap().with_backend("nft");
    let record = place.path().join("record");
    let strace = format!(
        "strace -qq -f -P {path} -e trace=stat,newfstatat,statx -e inject=stat,newfstatat,statx:error=ENOENT:when=1 -o {}",
        record.display()
    );
    let ran = node.run(|| add.run(&place, &strace)).unwrap().unwrap();
    let record = fs::read_to_string(record).unwrap();
    assert!(record.contains("ENOENT (No such file or directory) (INJECTED)"), "{record}");
    assert!(ran.code == Some(1) && ran.out.contains("GYBE-ADD-021"), "{ran:?}");
    assert_eq!(node.run(|| run("nft", &["list", "ruleset"], "")).unwrap().unwrap().out, "");
}
