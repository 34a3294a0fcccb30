//! Opening network namespaces, and the errors for paths that are not network namespaces (F17, A07, A10).

use crate::fixture::{in_new_namespace, ip};
use gybe_netfilter::kernel::netns::{Netns, NetnsError};
use gybe_test_support::TestDir;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

fn refusal(path: &Path) -> String {
    Netns::open(path).unwrap_err().to_string()
}

#[test]
fn a_namespace_is_the_same_by_every_path() {
    let own = Netns::of_this_thread().unwrap();
    in_new_namespace(|| {
        let inner = Netns::of_this_thread().unwrap();
        assert!(!inner.is_same_as(&own));
        let descriptor = format!("/proc/self/fd/{}", inner.as_fd().as_raw_fd());
        assert!(inner.is_same_as(&Netns::open(Path::new(&descriptor)).unwrap()));
        let directory = TestDir::new("netns-link");
        let link = directory.join("netns");
        std::os::unix::fs::symlink("/proc/thread-self/ns/net", &link).unwrap();
        assert!(inner.is_same_as(&Netns::open(&link).unwrap()));
    });
}

#[test]
fn run_works_inside_and_the_caller_stays_in_its_namespace() {
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
fn a_panic_inside_is_passed_on() {
    let own = Netns::of_this_thread().unwrap();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| own.run(|| panic!("inside"))));
    assert!(caught.is_err());
}

#[test]
fn f17_a_path_that_is_no_network_namespace_is_described() {
    let directory = TestDir::new("not-a-netns");
    let fifo = directory.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let socket = directory.join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for (path, sentence) in [
        (directory.path().to_owned(), "is not a network namespace but a directory"),
        (directory.write("text", "x"), "is not a network namespace but a regular file"),
        (directory.write("empty", ""), "is not a network namespace but an empty file"),
        (fifo, "is not a network namespace but a pipe"),
        (socket, "is not a network namespace but a socket or a device"),
        ("/dev/null".into(), "is not a network namespace but a device"),
        ("/proc/self/ns/mnt".into(), "is a mnt namespace, not a network namespace"),
        ("/proc/self/ns/user".into(), "is a user namespace, not a network namespace"),
    ] {
        let error = refusal(&path);
        assert!(error.ends_with(sentence), "{error}");
        assert!(error.starts_with(&format!("{path:?}")), "{error}");
    }
    let gone = directory.join("gone");
    assert_eq!(refusal(&gone), format!("network namespace {gone:?} does not exist"));
    let below_a_file = directory.join("text/file");
    assert!(matches!(Netns::open(&below_a_file), Err(NetnsError::Missing { .. })));
}
