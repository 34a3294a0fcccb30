//! STATUS reports whether an ADD would succeed with the configured backend, and what it costs.

use crate::{attempted, change, gybe, kept, later, refused};
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

fn told(ran: &Run) -> (Option<i32>, Value) {
    (ran.code, serde_json::from_str(&ran.out).unwrap_or_default())
}

/// Sets all findings of one backend in the report.
fn all(place: &PluginDir, backend: &str, finding: &Value) -> Result<(), Failure> {
    let findings = Profile::ALL.map(|profile| (profile.name().to_owned(), finding.clone()));
    change(place, &format!("/backends/{backend}"), Value::Object(findings.into_iter().collect()))
}

#[test]
fn f28_a_named_backend_whose_programs_do_not_work_is_told_before_a_pod_fails() -> Result<(), Failure> {
    let (place, pod) = (PluginDir::new("status-named"), pod()?);
    let call = PluginCall::add(&pod, &place)?;
    let broken = in_place_of(&[NFT, LEGACY], "/bin/false");
    for word in ["iptables-nft", "iptables-legacy", "iptables"] {
        let (code, said) = told(&call.clone().with_verb("STATUS").with_backend(word).run(&place, &broken)?);
        assert_eq!((code, &said["code"]), (Some(1), &json!(50)), "{word}: {said:#}");
        let msg = said["msg"].as_str().unwrap_or_default();
        let begins =
            format!("gybe-cni cmdStatus GYBE-STATUS-027: no backend works on this node for {word}: ");
        assert!(msg.starts_with(&begins), "{msg}");
    }
    // When the programs work again, STATUS succeeds, at the latest after the next probe of the failed backend.
    later(&place)?;
    for word in ["iptables-nft", "iptables-legacy", "iptables", "nft"] {
        let (attempts, ran) = attempted(&place, &call.clone().with_verb("STATUS").with_backend(word))?;
        assert_eq!((ran.code, ran.out.as_str()), (Some(0), ""), "{word}: {ran:#?}");
        assert_eq!(attempts, if word == "iptables" { 0 } else { 5 }, "{word}");
        let (attempts, ran) = attempted(&place, &call.clone().with_verb("STATUS").with_backend(word))?;
        assert_eq!((ran.code, attempts), (Some(0), 0), "{word}: once it is known it is read");
    }
    Ok(())
}

/// ADD uses the configured backend even if the probe report says that it does not work.
#[test]
fn an_add_takes_the_word_that_status_doubts() -> Result<(), Failure> {
    let (place, pod) = (PluginDir::new("status-word"), pod()?);
    gybe(&place, "probe", "")?;
    all(&place, "nft", &refused("no NAT"))?;
    let call = PluginCall::add(&pod, &place)?.with_backend("nft");
    let (_, said) = told(&call.clone().with_verb("STATUS").run(&place, "")?);
    assert_eq!(said["details"], "iptables-nft works on this node: set backend to iptables-nft or to auto");
    let (attempts, ran) = attempted(&place, &call)?;
    assert_eq!((ran.code, attempts), (Some(0), 0), "{ran:#?}");
    Ok(())
}

/// The probe does not load the module `ip_tables`; the first ADD on a node with that configured backend does.
#[test]
fn f28_a_named_iptables_legacy_that_is_not_loaded_yet_is_tried_out() -> Result<(), Failure> {
    let (place, pod) = (PluginDir::new("status-unloaded"), pod()?);
    gybe(&place, "probe", "")?;
    all(&place, "iptables-legacy", &json!({ "finding": "not loaded" }))?;
    let call = PluginCall::add(&pod, &place)?.with_verb("STATUS").with_backend("iptables-legacy");
    let (attempts, ran) = attempted(&place, &call)?;
    assert_eq!((ran.code, ran.out.as_str(), attempts), (Some(0), "", 5), "{ran:#?}");
    let known: Value = serde_json::from_str(&fs::read_to_string(kept(&place))?)?;
    assert_eq!(known["backends"]["iptables-legacy"]["v4"]["finding"], "works", "{known:#}");
    Ok(())
}

#[test]
fn what_nobody_uses_is_not_asked_again_on_the_path_of_a_call() -> Result<(), Failure> {
    let (place, pod) = (PluginDir::new("status-unused"), pod()?);
    gybe(&place, "probe", "")?;
    all(&place, "nft", &refused("no NAT"))?;
    change(&place, "/backends/iptables-nft/tproxy", refused("no TPROXY"))?;
    let call = PluginCall::add(&pod, &place)?.with_backend("auto");
    for verb in ["STATUS", "ADD"] {
        later(&place)?;
        let (attempts, ran) = attempted(&place, &call.clone().with_verb(verb))?;
        assert_eq!((ran.code, attempts), (Some(0), 0), "{verb}: {ran:#?}");
        assert!(verb == "STATUS" || ran.err.contains(r#""tool":"iptables-nft""#), "{}", ran.err);
    }
    Ok(())
}

#[test]
fn f23_what_refuses_a_pod_is_asked_again_by_that_pod() -> Result<(), Failure> {
    let (place, pod) = (PluginDir::new("status-refuses"), pod()?);
    gybe(&place, "probe", "")?;
    change(&place, "/backends/nft/v4+v6", refused("no memory"))?;
    let call = PluginCall::add(&pod, &place)?.with_backend("auto");
    let (attempts, ran) = attempted(&place, &call)?;
    assert_eq!((told(&ran).1["code"].as_i64(), attempts), (Some(999), 0), "{ran:#?}");
    later(&place)?;
    assert_eq!(attempted(&place, &call.clone().with_verb("STATUS"))?.0, 0);
    let (attempts, ran) = attempted(&place, &call)?;
    assert_eq!((ran.code, attempts), (Some(0), 5), "{ran:#?}");
    assert!(ran.err.contains("ipv4 and ipv6"), "{}", ran.err);
    Ok(())
}

#[test]
fn f24_programs_that_have_gone_since_they_were_chosen_are_chosen_anew_at_once() -> Result<(), Failure> {
    for verb in ["STATUS", "ADD"] {
        let (place, pod) = (PluginDir::new(&format!("status-gone-{verb}")), pod()?);
        gybe(&place, "probe", "")?;
        let call = PluginCall::add(&pod, &place)?.with_verb(verb).with_backend("iptables");
        let ran = call.run(&place, &in_place_of(&[NFT], "/dev/null"))?;
        assert_eq!(ran.code, Some(0), "{verb}: {ran:#?}");
        assert!(verb == "STATUS" || ran.err.contains(r#""tool":"iptables-legacy""#), "{}", ran.err);
        let neither = in_place_of(&[NFT, LEGACY], "/dev/null");
        let (_, said) = told(&call.run(&place, &neither)?);
        assert_eq!(said["code"], 50, "{said:#}");
        let msg = said["msg"].as_str().unwrap_or_default();
        assert!(
            msg.contains("-027: no backend works on this node for iptables: iptables-nft: v4 refused: no"),
            "{msg}"
        );
    }
    Ok(())
}
