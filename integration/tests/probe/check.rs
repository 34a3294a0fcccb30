//! CHECK and `gybe verify` compare with the backend that wrote the rules, not with the one that would be chosen
//! now; STATUS reports whether an ADD would succeed with the configured backend, and what it costs.

use crate::{age_report, call_and_count_probes, change_report, gybe, refused_finding, report_path};
use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::failure::Failure;
use gybe_integration::plugin_call::{PluginCall, PluginDir, pod};
use gybe_integration::programs::{Run, run};
use gybe_netfilter::probe::Profile;
use serde_json::{Value, json};
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

const NFT: &str = "/usr/sbin/xtables-nft-multi";
const LEGACY: &str = "/usr/sbin/xtables-legacy-multi";

/// Returns the command prefix with which the plugin finds `instead` under these program names.
fn in_place_of(programs: &[&str], instead: &str) -> String {
    let mounts: String = programs.iter().map(|path| format!("mount --bind {instead} {path} && ")).collect();
    format!("sh -c '{mounts}exec \"$0\" \"$@\"'")
}

fn code_and_reply(ran: &Run) -> (Option<i32>, Value) {
    (ran.code, serde_json::from_str(&ran.out).unwrap_or_default())
}

/// Sets all findings of one backend in the report.
fn all(directory: &PluginDir, backend: &str, finding: &Value) -> Result<(), Failure> {
    let findings = Profile::ALL.map(|profile| (profile.name().to_owned(), finding.clone()));
    change_report(directory, &format!("/backends/{backend}"), Value::Object(findings.into_iter().collect()))
}

#[test]
fn f28_status_fails_when_the_programs_of_the_configured_backend_do_not_work() -> Result<(), Failure> {
    let (directory, pod) = (PluginDir::new("status-named"), pod()?);
    let call = PluginCall::add(&pod, &directory)?;
    let broken = in_place_of(&[NFT, LEGACY], "/bin/false");
    for configured in ["iptables-nft", "iptables-legacy", "iptables"] {
        let (code, reply) = code_and_reply(
            &call.clone().with_verb("STATUS").with_backend(configured).run(&directory, &broken)?,
        );
        assert_eq!((code, &reply["code"]), (Some(1), &json!(50)), "{configured}: {reply:#}");
        let msg = reply["msg"].as_str().unwrap_or_default();
        let begins =
            format!("gybe-cni cmdStatus GYBE-STATUS-027: no backend works on this node for {configured}: ");
        assert!(msg.starts_with(&begins), "{msg}");
    }
    // When the programs work again, STATUS succeeds, at the latest after the next probe of the failed backend.
    age_report(&directory)?;
    for configured in ["iptables-nft", "iptables-legacy", "iptables", "nft"] {
        let (attempts, ran) =
            call_and_count_probes(&directory, &call.clone().with_verb("STATUS").with_backend(configured))?;
        assert_eq!((ran.code, ran.out.as_str()), (Some(0), ""), "{configured}: {ran:#?}");
        assert_eq!(attempts, if configured == "iptables" { 0 } else { 5 }, "{configured}");
        let (attempts, ran) =
            call_and_count_probes(&directory, &call.clone().with_verb("STATUS").with_backend(configured))?;
        assert_eq!((ran.code, attempts), (Some(0), 0), "{configured}: the stored report is used");
    }
    Ok(())
}

/// ADD uses the configured backend even if the probe report says that it does not work.
#[test]
fn an_add_uses_the_configured_backend_even_where_status_fails() -> Result<(), Failure> {
    let (directory, pod) = (PluginDir::new("status-word"), pod()?);
    gybe(&directory, "probe", "")?;
    all(&directory, "nft", &refused_finding("no NAT"))?;
    let call = PluginCall::add(&pod, &directory)?.with_backend("nft");
    let (_, reply) = code_and_reply(&call.clone().with_verb("STATUS").run(&directory, "")?);
    assert_eq!(reply["details"], "iptables-nft works on this node: set backend to iptables-nft or to auto");
    let (attempts, ran) = call_and_count_probes(&directory, &call)?;
    assert_eq!((ran.code, attempts), (Some(0), 0), "{ran:#?}");
    Ok(())
}

/// The probe does not load the module `ip_tables`; the first ADD on a node with that configured backend does.
#[test]
fn f28_status_probes_a_configured_iptables_legacy_that_is_not_loaded() -> Result<(), Failure> {
    let (directory, pod) = (PluginDir::new("status-unloaded"), pod()?);
    gybe(&directory, "probe", "")?;
    all(&directory, "iptables-legacy", &json!({ "finding": "not loaded" }))?;
    let call = PluginCall::add(&pod, &directory)?.with_verb("STATUS").with_backend("iptables-legacy");
    let (attempts, ran) = call_and_count_probes(&directory, &call)?;
    assert_eq!((ran.code, ran.out.as_str(), attempts), (Some(0), "", 5), "{ran:#?}");
    let known: Value = serde_json::from_str(&fs::read_to_string(report_path(&directory))?)?;
    assert_eq!(known["backends"]["iptables-legacy"]["v4"]["finding"], "works", "{known:#}");
    Ok(())
}

#[test]
fn a_call_does_not_probe_backends_again_that_it_does_not_use() -> Result<(), Failure> {
    let (directory, pod) = (PluginDir::new("status-unused"), pod()?);
    gybe(&directory, "probe", "")?;
    all(&directory, "nft", &refused_finding("no NAT"))?;
    change_report(&directory, "/backends/iptables-nft/tproxy", refused_finding("no TPROXY"))?;
    let call = PluginCall::add(&pod, &directory)?.with_backend("auto");
    for verb in ["STATUS", "ADD"] {
        age_report(&directory)?;
        let (attempts, ran) = call_and_count_probes(&directory, &call.clone().with_verb(verb))?;
        assert_eq!((ran.code, attempts), (Some(0), 0), "{verb}: {ran:#?}");
        assert!(verb == "STATUS" || ran.err.contains(r#""tool":"iptables-nft""#), "{}", ran.err);
    }
    Ok(())
}

#[test]
fn f23_a_finding_that_refuses_a_pod_is_probed_again_by_its_next_add() -> Result<(), Failure> {
    let (directory, pod) = (PluginDir::new("status-refuses"), pod()?);
    gybe(&directory, "probe", "")?;
    change_report(&directory, "/backends/nft/v4+v6", refused_finding("no memory"))?;
    let call = PluginCall::add(&pod, &directory)?.with_backend("auto");
    let (attempts, ran) = call_and_count_probes(&directory, &call)?;
    assert_eq!((code_and_reply(&ran).1["code"].as_i64(), attempts), (Some(999), 0), "{ran:#?}");
    age_report(&directory)?;
    assert_eq!(call_and_count_probes(&directory, &call.clone().with_verb("STATUS"))?.0, 0);
    let (attempts, ran) = call_and_count_probes(&directory, &call)?;
    assert_eq!((ran.code, attempts), (Some(0), 5), "{ran:#?}");
    assert!(ran.err.contains("ipv4 and ipv6"), "{}", ran.err);
    Ok(())
}

#[test]
fn f24_when_the_chosen_backends_programs_are_gone_another_is_chosen_at_once() -> Result<(), Failure> {
    for verb in ["STATUS", "ADD"] {
        let (directory, pod) = (PluginDir::new(&format!("status-gone-{verb}")), pod()?);
        gybe(&directory, "probe", "")?;
        let call = PluginCall::add(&pod, &directory)?.with_verb(verb).with_backend("iptables");
        let ran = call.run(&directory, &in_place_of(&[NFT], "/dev/null"))?;
        assert_eq!(ran.code, Some(0), "{verb}: {ran:#?}");
        assert!(verb == "STATUS" || ran.err.contains(r#""tool":"iptables-legacy""#), "{}", ran.err);
        let neither = in_place_of(&[NFT, LEGACY], "/dev/null");
        let (_, reply) = code_and_reply(&call.run(&directory, &neither)?);
        assert_eq!(reply["code"], 50, "{reply:#}");
        let msg = reply["msg"].as_str().unwrap_or_default();
        assert!(
            msg.contains("-027: no backend works on this node for iptables: iptables-nft: v4 refused: no"),
            "{msg}"
        );
    }
    Ok(())
}
