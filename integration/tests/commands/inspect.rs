//! `gybe inspect`: the native command of its first line, and `--style iptables` beside the real iptables programs.

use gybe_installer::testnet::namespace::Namespace;
use gybe_integration::failure::Failure;
use gybe_integration::programs::{ours, run};
use gybe_integration::vectors;
use gybe_netfilter::backend::Backend;
use gybe_netfilter::compile::compile;
use gybe_netfilter::iptables::{Iptables, Variant};
use gybe_netfilter::live::LiveRules;
use gybe_netfilter::nft::Nft;
use gybe_netfilter::policy::RedirectPolicy;
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::time::Duration;

/// The iptables deadline, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A namespace with the rules of a policy.
fn redirected(policy: &RedirectPolicy, backend: &dyn Backend) -> Result<Namespace, Failure> {
    let pod = Namespace::new()?;
    pod.run(|| backend.write(&mut backend.open()?, &compile(policy)))??;
    Ok(pod)
}

fn inspect(pod: &Namespace, words: &[&str]) -> Result<String, Failure> {
    let netns = pod.path().to_string_lossy().into_owned();
    let words = [&["inspect", "--netns", &netns][..], words].concat();
    let out = ours("gybe", &words, "")?;
    assert_eq!(out.code, Some(0), "{out:?}");
    Ok(out.out)
}

/// The blocks of `gybe inspect --style iptables`, by the command that prints each: `iptables -t nat -S`.
fn blocks(text: &str) -> BTreeMap<String, String> {
    let blocks = text.split("\n# ").skip(1).filter_map(|block| block.split_once('\n'));
    blocks.map(|(command, block)| (command.to_owned(), block.trim_end_matches('\n').to_owned())).collect()
}

/// The real program's output without policies and without the built-in chains that have no rule.
fn without_policies(printed: &str) -> String {
    if !printed.starts_with("Chain ") {
        let rules = printed.lines().filter(|line| !line.starts_with("-P "));
        return rules.collect::<Vec<_>>().join("\n");
    }
    let chains = printed.trim_end_matches('\n').split("\n\n").filter_map(|chain| {
        let is_empty = chain.lines().count() < 3;
        match chain.split_once(" (policy ") {
            Some(_) if is_empty => None,
            Some((name, rest)) => Some(format!("{name}\n{}", rest.split_once('\n')?.1)),
            None => Some(chain.to_owned()),
        }
    });
    chains.collect::<Vec<_>>().join("\n\n")
}

/// Sends packets that rules count: connections that no listener accepts.
fn send(pod: &Namespace) -> Result<(), Failure> {
    pod.run(|| {
        let up = run("ip", &["link", "set", "lo", "up"], "");
        for address in ["127.0.0.1:7", "[::1]:7"] {
            let refused = TcpStream::connect(address);
            assert!(refused.is_err(), "{address}");
        }
        up
    })??;
    Ok(())
}

fn style_iptables_prints_what_the_programs_print(variant: Variant) -> Result<(), Failure> {
    let backend = Iptables::find(variant)?.with_deadline(PATIENCE);
    let mut counted = false;
    for vector in vectors::all()? {
        let pod = redirected(&vector.policy, &backend)?;
        send(&pod)?;
        let text = inspect(&pod, &["--style", "iptables"])?;
        assert!(text.starts_with(&format!("{}: nsenter --net=", variant.name())), "{text}");
        let blocks = blocks(&text);
        assert!(blocks.contains_key("iptables -t nat -S"), "{text}");
        for (command, block) in &blocks {
            let (program, arguments) = command.split_once(' ').unwrap_or_default();
            let program = format!("{program}-{}", variant.name().trim_start_matches("iptables-"));
            let arguments: Vec<&str> = arguments.split(' ').collect();
            let command =
                [&["XTABLES_LOCKFILE=/proc/self/ns/net", program.as_str()], arguments.as_slice()].concat();
            let printed = pod.run(|| run("env", &command, ""))??;
            assert_eq!(printed.code, Some(0), "{printed:?}");
            assert_eq!(*block, without_policies(&printed.out), "{}: {program} {arguments:?}", vector.name);
            counted |= block.lines().any(|line| line.starts_with("1           1 "));
        }
    }
    assert!(counted, "no rule has counted a packet");
    Ok(())
}

#[test]
fn on_iptables_nft_style_iptables_prints_what_the_programs_print() -> Result<(), Failure> {
    style_iptables_prints_what_the_programs_print(Variant::Nft)
}

#[test]
fn on_iptables_legacy_style_iptables_prints_what_the_programs_print() -> Result<(), Failure> {
    style_iptables_prints_what_the_programs_print(Variant::Legacy)
}

#[test]
fn on_nft_style_iptables_prints_the_rules_that_an_iptables_backend_writes() -> Result<(), Failure> {
    let backend = Iptables::find(Variant::Nft)?.with_deadline(PATIENCE);
    for vector in vectors::all()? {
        let by_nft = inspect(&redirected(&vector.policy, &Nft)?, &["--style", "iptables"])?;
        let by_iptables = inspect(&redirected(&vector.policy, &backend)?, &["--style", "iptables"])?;
        assert!(by_nft.starts_with("nft: nsenter --net="), "{by_nft}");
        assert_eq!(blocks(&by_nft), blocks(&by_iptables), "{}", vector.name);
    }
    Ok(())
}

#[test]
fn every_policys_rules_are_read_back_from_nftables_as_they_were_compiled() -> Result<(), Failure> {
    for vector in vectors::all()? {
        let found = redirected(&vector.policy, &Nft)?.run(LiveRules::read)??;
        assert_eq!(found.gybes_ruleset()?, compile(&vector.policy), "{}", vector.name);
    }
    Ok(())
}

#[test]
fn a_rule_in_our_table_that_gybe_does_not_write_is_named() -> Result<(), Failure> {
    let pod = redirected(&vectors::all()?[0].policy, &Nft)?;
    let rule = "add rule inet gybe nat-output tcp dport 7 counter accept";
    assert_eq!(pod.run(|| run("nft", &["-f", "-"], rule))??.code, Some(0));
    let netns = pod.path().to_string_lossy().into_owned();
    let out = ours("gybe", &["inspect", "--netns", &netns, "--style", "iptables"], "")?;
    assert_eq!(out.code, Some(2), "{out:?}");
    assert!(out.err.contains("chain nat-output has the rule \"tcp dport 7 accept\""), "{}", out.err);
    Ok(())
}

#[test]
fn the_native_command_lists_the_same_rules() -> Result<(), Failure> {
    let backend = Iptables::find(Variant::Nft)?.with_deadline(PATIENCE);
    let backends: [&dyn Backend; 2] = [&Nft, &backend];
    for backend in backends {
        let pod = redirected(&vectors::all()?[0].policy, backend)?;
        let text = inspect(&pod, &[])?;
        let first = text.lines().next().unwrap_or_default();
        let command = first.strip_prefix(&format!("{}: ", backend.name())).unwrap_or_default();
        let listed = run("sh", &["-c", command], "")?;
        assert_eq!(listed.code, Some(0), "{command}: {listed:?}");
        assert!(listed.out.contains("outbound-to-proxy"), "{command}: {}", listed.out);
    }
    Ok(())
}
