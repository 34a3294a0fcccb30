//! Opening network namespaces, and the errors for paths that are not network namespaces (F17, A07, A10).

use crate::namespace::{in_new_namespace, ip};
use gybe_netfilter::netns::{Netns, NetnsError};
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

/// A directory that is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gybe-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn refusal(path: &Path) -> String {
    Netns::open(path).unwrap_err().to_string()
}

#[test]
fn a_namespace_is_the_same_whatever_path_leads_to_it() {
    let own = Netns::of_this_thread().unwrap();
    in_new_namespace(|| {
        let inner = Netns::of_this_thread().unwrap();
        assert!(!inner.is_same_as(&own));
        let descriptor = format!("/proc/self/fd/{}", inner.as_fd().as_raw_fd());
        assert!(inner.is_same_as(&Netns::open(Path::new(&descriptor)).unwrap()));
        let scratch = Scratch::new("link");
        let link = scratch.0.join("netns");
        std::os::unix::fs::symlink("/proc/thread-self/ns/net", &link).unwrap();
        assert!(inner.is_same_as(&Netns::open(&link).unwrap()));
    });
}

#[test]
fn work_is_done_inside_and_the_caller_stays_where_it_was() {
    let outside = Netns::of_this_thread().unwrap();
    let inside = in_new_namespace(|| {
        ip("link add only-here type bridge");
        Netns::of_this_thread().unwrap()
    });
    let links = inside.run(|| ip("-o link")).unwrap();
    assert!(links.contains("only-here"), "{links}");
    assert!(inside.run(|| Netns::of_this_thread().unwrap()).unwrap().is_same_as(&inside));
    assert!(Netns::of_this_thread().unwrap().is_same_as(&outside));
}

#[test]
fn a_panic_inside_comes_out() {
    let own = Netns::of_this_thread().unwrap();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| own.run(|| panic!("inside"))));
    assert!(caught.is_err());
}

#[test]
fn f17_what_is_no_network_namespace_is_called_what_it_is() {
    let scratch = Scratch::new("none");
    let file = |name: &str, content: &str| {
        let path = scratch.0.join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let fifo = scratch.0.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let socket = scratch.0.join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for (path, said) in [
        (scratch.0.clone(), "is not a network namespace but a directory"),
        (file("text", "x"), "is not a network namespace but a regular file"),
        (file("empty", ""), "is not a network namespace but an empty file"),
        (fifo, "is not a network namespace but a pipe"),
        (socket, "is not a network namespace but a socket or a device"),
        ("/dev/null".into(), "is not a network namespace but a device"),
        ("/proc/self/ns/mnt".into(), "is a mnt namespace, not a network namespace"),
        ("/proc/self/ns/user".into(), "is a user namespace, not a network namespace"),
    ] {
        let error = refusal(&path);
        assert!(error.ends_with(said), "{error}");
        assert!(error.starts_with(&format!("{path:?}")), "{error}");
    }
    let gone = scratch.0.join("gone");
    assert_eq!(refusal(&gone), format!("network namespace {gone:?} does not exist"));
    let beneath = scratch.0.join("text/beneath");
    assert!(matches!(Netns::open(&beneath), Err(NetnsError::Missing { .. })));
}
