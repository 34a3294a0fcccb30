//! Errors of the kernel: the message names the object, the reason and the remedy.

use crate::fixture::{
    differences, every_verdict, in_new_namespace, inspected, nft, redirect, rule, ruleset, without_privilege,
};
use gybe_netfilter::apply::apply;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::ruleset::{ChainName, Match, Ruleset, Transport, Verdict};
use gybe_netfilter::nft::{Nft, NftError, Object};
use nix::errno::Errno;
use std::borrow::Cow;
use std::error::Error;

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
        assert!(matches!(tried, NftError::Refused { object: Object::Rule(..), .. }), "{tried:?}");
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
