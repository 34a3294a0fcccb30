//! CHECK and `gybe verify` compare with the backend that wrote the rules, not with the one that would be chosen now.

use crate::{age_report, change_report, gybe, refused_finding, report_path};
use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::failure::Failure;
use gybe_integration::plugin_call::{PluginCall, PluginDir, pod};
use gybe_integration::programs::run;
use serde_json::Value;
use std::fs;

/// Adds DNS capture to the example pod's manifest.
fn capture_dns(directory: &PluginDir) -> Result<(), Failure> {
    let dns = r#""value": "true" }, { "name": "ISTIO_META_DNS_CAPTURE", "value": "true" }"#;
    let manifest = fs::read_to_string(directory.manifest())?.replacen(r#""value": "true" }"#, dns, 1);
    Ok(fs::write(directory.manifest(), manifest)?)
}

fn verify(directory: &PluginDir, pod: &Namespace, more: &str) -> Result<Option<i32>, Failure> {
    let (manifest, netns) = (directory.manifest(), pod.path());
    let words = format!("verify --pod {} --netns {} {more}", manifest.display(), netns.display());
    Ok(gybe(directory, &words, "")?.code)
}

/// Makes the ADD of a pod whose DNS is captured without conntrack zones, because `backend` does not support them.
fn without_zones(directory: &PluginDir, pod: &Namespace, backend: &str) -> Result<PluginCall, Failure> {
    capture_dns(directory)?;
    gybe(directory, "probe", "")?;
    change_report(directory, &format!("/backends/{backend}/dns"), refused_finding("zones"))?;
    let call =
        PluginCall::add(pod, directory)?.with_backend(if backend == "nft" { "auto" } else { "iptables" });
    let ran = call.run(directory, "")?;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    assert!(ran.err.contains("DNS is captured without"), "{}", ran.err);
    Ok(call.with_verb("CHECK"))
}

#[test]
fn f23_without_zones_dns_is_captured_without_them_and_a_warning_is_logged() -> Result<(), Failure> {
    let (directory, pod) = (PluginDir::new("probe-zones"), pod()?);
    without_zones(&directory, &pod, "nft")?;
    let rules = pod.run(|| run("nft", &["list", "ruleset"], ""))??.out;
    assert!(rules.contains("dns-to-agent") && !rules.contains("zone"), "{rules}");
    assert_eq!(verify(&directory, &pod, "")?, Some(0));
    assert_eq!(verify(&directory, &pod, "--backend nft")?, Some(1), "that would write zones");
    Ok(())
}

/// Later changes of the probe report or the configured backend do not make existing pods' CHECK fail.
#[test]
fn f23_check_accepts_rules_without_zones_after_the_probe_report_changes() -> Result<(), Failure> {
    for backend in ["nft", "iptables-nft"] {
        let (directory, pod) = (PluginDir::new(&format!("probe-zones-{backend}")), pod()?);
        let check = without_zones(&directory, &pod, backend)?;
        let holds = |since: &str| -> Result<(), Failure> {
            for configured in ["auto", "iptables", "nft"] {
                let ran = check.clone().with_backend(configured).run(&directory, "")?;
                assert_eq!(
                    (ran.code, ran.out.as_str()),
                    (Some(0), ""),
                    "{backend}, {configured}, {since}: {ran:#?}"
                );
            }
            assert_eq!(verify(&directory, &pod, "")?, Some(0), "{backend}, {since}");
            Ok(())
        };
        holds("at once")?;
        age_report(&directory)?;
        holds("31 s later")?;
        change_report(&directory, &format!("/backends/{backend}/v4"), refused_finding("no NAT"))?;
        holds("with another chosen backend")?;
        fs::remove_file(report_path(&directory))?;
        holds("removed")?;
    }
    Ok(())
}

#[test]
fn check_reports_missing_zone_chains_where_zones_work_and_other_missing_rules_everywhere()
-> Result<(), Failure> {
    let (directory, pod) = (PluginDir::new("probe-zones-lost"), pod()?);
    capture_dns(&directory)?;
    let call = PluginCall::add(&pod, &directory)?.with_backend("auto");
    assert_eq!(call.run(&directory, "")?.code, Some(0));
    let flush = |chain: &str| pod.run(|| run("nft", &["flush", "chain", "inet", "gybe", chain], ""));
    let assert_missing = |what: &[&str]| -> Result<(), Failure> {
        let report: Value = serde_json::from_str(&call.clone().with_verb("CHECK").run(&directory, "")?.out)?;
        let message = report["msg"].as_str().unwrap_or_default();
        assert!(
            message.contains("GYBE-CHECK-025") && what.iter().all(|what| message.contains(what)),
            "{report:#}"
        );
        Ok(())
    };
    for chain in ["raw-output", "raw-prerouting"] {
        assert_eq!(pod.run(|| run("nft", &["delete", "chain", "inet", "gybe", chain], ""))??.code, Some(0));
    }
    assert_missing(&["raw-output"])?;
    change_report(&directory, "/backends/nft/dns", refused_finding("zones"))?;
    let check = call.clone().with_verb("CHECK").run(&directory, "")?;
    assert_eq!(check.code, Some(0), "{check:#?}");
    assert_eq!(flush("nat-output")??.code, Some(0));
    assert_missing(&["nat-output"])
}

#[test]
fn check_accepts_rules_of_another_backend_than_the_configured_one() -> Result<(), Failure> {
    let backends = ["nft", "iptables-nft", "iptables-legacy"];
    for writer in backends {
        let (directory, pod) = (PluginDir::new(&format!("probe-word-{writer}")), pod()?);
        let call = PluginCall::add(&pod, &directory)?.with_backend(writer);
        assert_eq!(call.run(&directory, "")?.code, Some(0));
        for configured in backends.into_iter().chain(["auto", "iptables"]) {
            let ran = call.clone().with_verb("CHECK").with_backend(configured).run(&directory, "")?;
            assert_eq!((ran.code, ran.out.as_str()), (Some(0), ""), "{writer}, then {configured}: {ran:#?}");
        }
    }
    Ok(())
}

#[test]
fn other_owners_translations_do_not_fail_check_and_are_logged() -> Result<(), Failure> {
    let (directory, pod) = (PluginDir::new("check-foreign"), pod()?);
    let call = PluginCall::add(&pod, &directory)?.with_backend("nft");
    assert_eq!(call.run(&directory, "")?.code, Some(0));
    let theirs = ["-t", "nat", "-I", "OUTPUT", "-p", "tcp", "-j", "REDIRECT", "--to-ports", "9999"];
    assert_eq!(pod.run(|| run("iptables-nft", &theirs, ""))??.code, Some(0));
    let check = call.with_verb("CHECK").run(&directory, "")?;
    assert_eq!((check.code, check.out.as_str()), (Some(0), ""), "{check:#?}");
    assert!(check.err.contains("cmdCheck: other owners' rules translate addresses here"), "{}", check.err);
    assert!(check.err.contains("nftables chain ip nat OUTPUT (priority -100)"), "{}", check.err);
    Ok(())
}
