//! Pods with `hostUsers: false`.

use super::*;
use gybe_netfilter::apply::apply;
use gybe_netfilter::iptables::script;
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::ruleset::Family;
use gybe_netfilter::xt::legacy::table_names;
use nix::sched::{CloneFlags, setns};
use nix::unistd::{Uid, setfsuid};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::process::Command;
use std::process::{Child, Stdio};

/// A network namespace that another user namespace owns, as a pod with `hostUsers: false` has.
struct UserPod {
    user_namespace: Child,
    network_namespace: Child,
}

/// Starts a program that prints a line when it is where it should be, and ends with its input.
fn waiting(program: &str, arguments: &[&str]) -> Child {
    let mut command = Command::new(program);
    command.args(arguments).args(["sh", "-c", "echo; read _"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child
}

impl UserPod {
    /// In the order of container runtimes: the user namespace gets its ids before the network
    /// namespace is made, so that this belongs to its root.
    fn new() -> Self {
        let user_namespace = waiting("unshare", &["--user"]);
        for map in ["gid_map", "uid_map"] {
            let ids = "0 2000 1\n1337 1337 1\n";
            std::fs::write(format!("/proc/{}/{map}", user_namespace.id()), ids).unwrap();
        }
        let target = user_namespace.id().to_string();
        let network_namespace = waiting("nsenter", &["--user", "--target", &target, "unshare", "--net"]);
        Self { user_namespace, network_namespace }
    }

    fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let netns = File::open(format!("/proc/{}/ns/net", self.network_namespace.id())).unwrap();
        std::thread::scope(|scope| {
            let inside = scope.spawn(move || {
                setns(netns, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            });
            inside.join().unwrap()
        })
    }
}

impl Drop for UserPod {
    fn drop(&mut self) {
        for child in [&mut self.network_namespace, &mut self.user_namespace] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

#[test]
fn a_namespace_that_another_user_namespace_owns_is_redirected() {
    for variant in VARIANTS {
        let pod = UserPod::new();
        let backend = patient(variant);
        pod.run(|| {
            let rules = ruleset("inject-default-dual");
            let name = variant.name().trim_start_matches("iptables-");
            // The control: the very same text is refused from outside.
            let text = script(&rules, Family::V4).unwrap();
            let outside = sh(&format!(
                "iptables-{name}-restore --noflush <<'EOF' 2>/dev/null || echo refused\n{text}EOF"
            ));
            assert_eq!(outside.trim(), "refused");
            apply(&backend, &rules).unwrap();
            assert_in_force(&backend, &rules);
            assert!(save(variant).contains("--uid-owner 1337"));
            backend.remove().unwrap();
            assert!(has_nothing_of_gybe(&save(variant)));
        });
    }
}

/// The agent's container `repair` is root without CAP_DAC_OVERRIDE.
#[test]
fn the_list_of_legacy_tables_is_read_without_the_right_to_read_every_file() {
    UserPod::new().run(|| {
        sh("iptables-legacy -t raw -A OUTPUT -j NOTRACK");
        // A thread whose user for files is not root has no capability over files.
        setfsuid(Uid::from_raw(1));
        let read = || std::fs::read_to_string("/proc/thread-self/net/ip_tables_names");
        // The second time because `table_names` changes the thread's user for files, and must restore it.
        for _ in 0..2 {
            assert_eq!(read().unwrap_err().kind(), ErrorKind::PermissionDenied, "the control");
            assert_eq!(table_names(Family::V4).unwrap(), ["raw"]);
        }
    });
}

/// In a user namespace without root no program can write rules: exec drops the capabilities.
#[test]
fn a_user_namespace_without_root_is_refused_with_a_hint() {
    for variant in VARIANTS {
        let mut pod = waiting("unshare", &["--user", "--net"]);
        for map in ["gid_map", "uid_map"] {
            std::fs::write(format!("/proc/{}/{map}", pod.id()), "1337 1337 1\n").unwrap();
        }
        let netns = File::open(format!("/proc/{}/ns/net", pod.id())).unwrap();
        let backend = patient(variant);
        let refused = std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(netns, CloneFlags::CLONE_NEWNET).unwrap();
                apply(&backend, &ruleset("inject-default-v4")).unwrap_err()
            });
            inside.join().unwrap()
        });
        pod.kill().unwrap();
        pod.wait().unwrap();
        let (mut text, mut cause) = (refused.to_string(), std::error::Error::source(&refused));
        while let Some(error) = cause {
            text += &format!(": {error}");
            cause = error.source();
        }
        // In a user namespace of our own its files in /proc cannot be read, which is the reported error.
        if is_in_first_user_namespace() {
            assert!(text.contains("user namespace that owns this network namespace"), "{text}");
            assert!(refused.hint().is_some_and(|hint| hint.contains("\"nft\"")), "{text}");
        }
    }
}

/// Reports whether this process is in the first user namespace, which maps every id to itself.
fn is_in_first_user_namespace() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").unwrap().contains("4294967295")
}
