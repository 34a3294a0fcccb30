//! CHECK and `gybe verify` compare with the backend that wrote the rules, not with the one that would be chosen now.

use crate::{change, gybe, kept, later, refused};
use gybe_installer::testnet::namespace::Namespace;
use gybe_integration::failure::Failure;
use gybe_integration::plugin_call::{PluginCall, PluginDir, pod};
use gybe_integration::programs::run;
use serde_json::Value;
use std::fs;

/// Adds DNS capture to the example pod's manifest.
fn ask_for_dns(place: &PluginDir) -> Result<(), Failure> {
    let dns = r#""value": "true" }, { "name": "ISTIO_META_DNS_CAPTURE", "value": "true" }"#;
    let manifest = fs::read_to_string(place.manifest())?.replacen(r#""value": "true" }"#, dns, 1);
    Ok(fs::write(place.manifest(), manifest)?)
}

fn verify(place: &PluginDir, pod: &Namespace, more: &str) -> Result<Option<i32>, Failure> {
    let (manifest, netns) = (place.manifest(), pod.path());
    let words = format!("verify --pod {} --netns {} {more}", manifest.display(), netns.display());
    Ok(gybe(place, &words, "")?.code)
}

/// Makes the ADD of a pod whose DNS is captured without conntrack zones, because `backend` does not support them.
fn without_zones(place: &PluginDir, pod: &Namespace, backend: &str) -> Result<PluginCall, Failure> {
    ask_for_dns(place)?;
    gybe(place, "probe", "")?;
    change(place, &format!("/backends/{backend}/dns"), refused("zones"))?;
    let call = PluginCall::add(pod, place)?.with_backend(if backend == "nft" { "auto" } else { "iptables" });
    let ran = call.run(place, "")?;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    assert!(ran.err.contains("DNS is captured without"), "{}", ran.err);
    Ok(call.with_verb("CHECK"))
}

#[test]
fn f23_where_there_are_no_zones_dns_goes_without_and_it_is_said() -> Result<(), Failure> {
    let (place, pod) = (PluginDir::new("probe-zones"), pod()?);
    without_zones(&place, &pod, "nft")?;
    let rules = pod.run(|| run("nft", &["list", "ruleset"], ""))??.out;
    assert!(rules.contains("dns-to-agent") && !rules.contains("zone"), "{rules}");
    assert_eq!(verify(&place, &pod, "")?, Some(0));
    assert_eq!(verify(&place, &pod, "--backend nft")?, Some(1), "that would write zones");
    Ok(())
}

/// Later changes of the probe report or the configured backend do not make existing pods' CHECK fail.
#[test]
fn f23_rules_written_without_zones_are_as_add_left_them_whatever_is_known_since() -> Result<(), Failure> {
    for backend in ["nft", "iptables-nft"] {
        let (place, pod) = (PluginDir::new(&format!("probe-zones-{backend}")), pod()?);
        let check = without_zones(&place, &pod, backend)?;
        let holds = |since: &str| -> Result<(), Failure> {
            for word in ["auto", "iptables", "nft"] {
                let ran = check.clone().with_backend(word).run(&place, "")?;
                assert_eq!(
                    (ran.code, ran.out.as_str()),
                    (Some(0), ""),
                    "{backend}, {word}, {since}: {ran:#?}"
                );
            }
            assert_eq!(verify(&place, &pod, "")?, Some(0), "{backend}, {since}");
            Ok(())
        };
        holds("at once")?;
        later(&place)?;
        holds("31 s later")?;
        change(&place, &format!("/backends/{backend}/v4"), refused("no NAT"))?;
        holds("another backend's choice")?;
        fs::remove_file(kept(&place))?;
        holds("forgotten")?;
    }
    Ok(())
}

#[test]
fn where_zones_work_their_chains_are_missed_and_elsewhere_other_rules_are() -> Result<(), Failure> {
    let (place, pod) = (PluginDir::new("probe-zones-lost"), pod()?);
    ask_for_dns(&place)?;
    let call = PluginCall::add(&pod, &place)?.with_backend("auto");
    assert_eq!(call.run(&place, "")?.code, Some(0));
    let lose = |chain: &str| pod.run(|| run("nft", &["flush", "chain", "inet", "gybe", chain], ""));
    let missed = |what: &[&str]| -> Result<(), Failure> {
        let told: Value = serde_json::from_str(&call.clone().with_verb("CHECK").run(&place, "")?.out)?;
        let said = told["msg"].as_str().unwrap_or_default();
        assert!(said.contains("GYBE-CHECK-025") && what.iter().all(|what| said.contains(what)), "{told:#}");
        Ok(())
    };
    for chain in ["raw-output", "raw-prerouting"] {
        assert_eq!(pod.run(|| run("nft", &["delete", "chain", "inet", "gybe", chain], ""))??.code, Some(0));
    }
    missed(&["raw-output"])?;
    change(&place, "/backends/nft/dns", refused("zones"))?;
    let told = call.clone().with_verb("CHECK").run(&place, "")?;
    assert_eq!(told.code, Some(0), "{told:#?}");
    assert_eq!(lose("nat-output")??.code, Some(0));
    missed(&["nat-output"])
}

#[test]
fn rules_of_another_backend_than_the_word_names_by_now_are_as_add_left_them() -> Result<(), Failure> {
    let words = ["nft", "iptables-nft", "iptables-legacy"];
    for wrote in words {
        let (place, pod) = (PluginDir::new(&format!("probe-word-{wrote}")), pod()?);
        let call = PluginCall::add(&pod, &place)?.with_backend(wrote);
        assert_eq!(call.run(&place, "")?.code, Some(0));
        for word in words.into_iter().chain(["auto", "iptables"]) {
            let ran = call.clone().with_verb("CHECK").with_backend(word).run(&place, "")?;
            assert_eq!((ran.code, ran.out.as_str()), (Some(0), ""), "{wrote}, then {word}: {ran:#?}");
        }
    }
    Ok(())
}

#[test]
fn other_owners_translations_fail_no_check_and_are_named_in_the_log() -> Result<(), Failure> {
    let (place, pod) = (PluginDir::new("check-foreign"), pod()?);
    let call = PluginCall::add(&pod, &place)?.with_backend("nft");
    assert_eq!(call.run(&place, "")?.code, Some(0));
    let theirs = ["-t", "nat", "-I", "OUTPUT", "-p", "tcp", "-j", "REDIRECT", "--to-ports", "9999"];
    assert_eq!(pod.run(|| run("iptables-nft", &theirs, ""))??.code, Some(0));
    let check = call.with_verb("CHECK").run(&place, "")?;
    assert_eq!((check.code, check.out.as_str()), (Some(0), ""), "{check:#?}");
    assert!(check.err.contains("cmdCheck: other owners' rules translate addresses here"), "{}", check.err);
    assert!(check.err.contains("nftables chain ip nat OUTPUT (priority -100)"), "{}", check.err);
    Ok(())
}
