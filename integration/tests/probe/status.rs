//! STATUS reports whether an ADD would succeed with the configured backend, and what it costs.

use crate::{age_report, call_and_count_probes, change_report, gybe, refused_finding, report_path};
use gybe_integration::failure::Failure;
use gybe_integration::plugin_call::{PluginCall, PluginDir, pod};
use gybe_integration::programs::Run;
use gybe_netfilter::probe::Profile;
use serde_json::{Value, json};
use std::fs;

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
