//! Errors of the kernel: the message names the object, the reason and the remedy. Paths that are not network
//! namespaces (F17, A07, A10).

use crate::forms::{
    differences, every_verdict, in_new_namespace, inspected, ip, nft, redirect, rule, ruleset,
    without_privilege,
};
use gybe_netfilter::apply::apply;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::kernel::netns::{Netns, NetnsError};
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::ruleset::{ChainName, Match, Ruleset, Transport, Verdict};
use gybe_netfilter::nft::{BatchObject, Nft, NftError};
use gybe_test_support::TestDir;
use nix::errno::Errno;
use std::borrow::Cow;
use std::error::Error;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

fn refused(rules: &Ruleset) -> (String, Errno, Option<Cow<'static, str>>) {
    let error = apply(&Nft, rules).unwrap_err();
    let reason = error.source().and_then(|source| source.downcast_ref::<Errno>());
    (error.to_string(), *reason.unwrap_or_else(|| panic!("{error:?}")), error.hint())
}

#[test]
fn the_error_of_a_goto_to_a_missing_chain_names_its_rule_and_no_module() {
    let rules = ruleset(vec![(
        ChainName::NatOutput,
        vec![
            rule("first", vec![], Verdict::Return),
            rule("lost", vec![], Verdict::Goto(ChainName::NatCapture)),
        ],
    )]);
    in_new_namespace(|| {
        let (sentence, errno, hint) = refused(&rules);
        assert_eq!(sentence, r#"nftables refused rule "lost" in chain nat-output"#);
        assert_eq!((errno, hint), (Errno::ENOENT, None));
        assert_eq!(nft(&["list", "ruleset"]), "", "nothing of a refused transaction stays");
    });
}

#[test]
fn f16_a_refused_transaction_leaves_the_previous_rules() {
    let wrong = ruleset(vec![(
        ChainName::NatOutput,
        vec![rule("lost", vec![], Verdict::Goto(ChainName::NatCapture))],
    )]);
    in_new_namespace(|| {
        apply(&Nft, &redirect()).unwrap();
        let before = nft(&["-a", "list", "ruleset"]);
        assert_eq!(refused(&wrong).1, Errno::ENOENT);
        assert_eq!(nft(&["-a", "list", "ruleset"]), before);
    });
}

#[test]
fn the_error_of_a_verdict_in_the_wrong_chain_names_its_rule() {
    let tcp = Match::Protocol(Transport::Tcp);
    let redirect = Verdict::Redirect(15001.try_into().unwrap());
    let rules = ruleset(vec![(ChainName::MangleOutput, vec![rule("misplaced", vec![tcp], redirect)])]);
    in_new_namespace(|| {
        let (sentence, errno, hint) = refused(&rules);
        assert!(
            sentence.starts_with(r#"nftables refused rule "misplaced" in chain mangle-output"#),
            "{sentence}"
        );
        assert_eq!(errno, Errno::EOPNOTSUPP);
        assert!(hint.unwrap().contains("nft_redir"));
        let tried = Nft.dry_run(&rules).unwrap_err();
        assert!(matches!(tried, NftError::Refused { object: BatchObject::Rule(..), .. }), "{tried:?}");
    });
}

#[test]
fn without_privilege_the_hint_names_the_capability() {
    in_new_namespace(|| {
        without_privilege();
        let (sentence, errno, hint) = refused(&redirect());
        assert_eq!((sentence.as_str(), errno), ("nftables does not list the chains", Errno::EPERM));
        assert!(hint.unwrap().contains("CAP_NET_ADMIN"));
        for error in [Nft.inspect().unwrap_err(), Nft.remove().unwrap_err()] {
            assert!(error.hint().is_some_and(|hint| hint.contains("CAP_NET_ADMIN")), "{error:?}");
        }
    });
}

#[test]
fn a_rule_id_that_is_too_long_for_a_comment_is_refused_by_name() {
    let with = |length| {
        let id: &'static str = "x".repeat(length).leak();
        ruleset(vec![(ChainName::NatOutput, vec![rule(id, vec![], Verdict::Return)])])
    };
    in_new_namespace(|| {
        for length in [254, 255, 256, 300, 70_000] {
            let error = apply(&Nft, &with(length)).unwrap_err();
            let named =
                error.to_string().contains("rule \"xxx") || error.to_string().contains("cannot encode");
            assert!(named, "{length}: {error:?}");
            assert!(inspected().is_empty());
        }
        apply(&Nft, &with(253)).unwrap();
        assert_eq!(differences(&with(253)), [""; 0]);
    });
}

#[test]
fn f19_concurrent_applies_in_fifty_namespaces_succeed() {
    std::thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| in_new_namespace(|| apply(&Nft, &every_verdict()).unwrap()));
        }
    });
}

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
