//! STATUS: would an ADD work here, and at which cost.

use crate::{attempted, change, gybe, later, refused};
use gybe_integration::add::{Call, Place, pod};
use gybe_integration::complaint::Complaint;
use gybe_integration::programs::Run;
use gybe_netfilter::probe::Profile;
use serde_json::Value;

const NFT: &str = "/usr/sbin/xtables-nft-multi";
const LEGACY: &str = "/usr/sbin/xtables-legacy-multi";

/// What to put in front of the plugin so that it meets `instead` under these names.
fn in_place_of(programs: &[&str], instead: &str) -> String {
    let mounts: String = programs.iter().map(|path| format!("mount --bind {instead} {path} && ")).collect();
    format!("sh -c '{mounts}exec \"$0\" \"$@\"'")
}

fn told(ran: &Run) -> (Option<i32>, Value) {
    (ran.code, serde_json::from_str(&ran.out).unwrap_or_default())
}

/// All of one backend's findings.
fn all(place: &Place, backend: &str, finding: &Value) -> Result<(), Complaint> {
    let findings = Profile::ALL.map(|profile| (profile.name().to_owned(), finding.clone()));
    change(place, &format!("/backends/{backend}"), Value::Object(findings.into_iter().collect()))
}

#[test]
fn what_nobody_uses_is_not_asked_again_on_the_path_of_a_call() -> Result<(), Complaint> {
    let (place, pod) = (Place::new("status-unused")?, pod()?);
    gybe(&place, "probe", "")?;
    all(&place, "nft", &refused("no NAT"))?;
    change(&place, "/backends/iptables-nft/tproxy", refused("no TPROXY"))?;
    let call = Call::add(&pod, &place)?.by("auto");
    for verb in ["STATUS", "ADD"] {
        later(&place)?;
        let (attempts, ran) = attempted(&place, &call.clone().of(verb))?;
        assert_eq!((ran.code, attempts), (Some(0), 0), "{verb}: {ran:#?}");
        assert!(verb == "STATUS" || ran.err.contains(r#""tool":"iptables-nft""#), "{}", ran.err);
    }
    Ok(())
}

#[test]
fn f23_what_refuses_a_pod_is_asked_again_by_that_pod() -> Result<(), Complaint> {
    let (place, pod) = (Place::new("status-refuses")?, pod()?);
    gybe(&place, "probe", "")?;
    change(&place, "/backends/nft/v4+v6", refused("no memory"))?;
    let call = Call::add(&pod, &place)?.by("auto");
    let (attempts, ran) = attempted(&place, &call)?;
    assert_eq!((told(&ran).1["code"].as_i64(), attempts), (Some(999), 0), "{ran:#?}");
    later(&place)?;
    assert_eq!(attempted(&place, &call.clone().of("STATUS"))?.0, 0);
    let (attempts, ran) = attempted(&place, &call)?;
    assert_eq!((ran.code, attempts), (Some(0), 5), "{ran:#?}");
    assert!(ran.err.contains("ipv4 and ipv6"), "{}", ran.err);
    Ok(())
}

#[test]
fn f24_programs_that_have_gone_since_they_were_chosen_are_chosen_anew_at_once() -> Result<(), Complaint> {
    for verb in ["STATUS", "ADD"] {
        let (place, pod) = (Place::new(&format!("status-gone-{verb}"))?, pod()?);
        gybe(&place, "probe", "")?;
        let call = Call::add(&pod, &place)?.of(verb).by("iptables");
        let ran = call.make(&place, &in_place_of(&[NFT], "/dev/null"))?;
        assert_eq!(ran.code, Some(0), "{verb}: {ran:#?}");
        assert!(verb == "STATUS" || ran.err.contains(r#""tool":"iptables-legacy""#), "{}", ran.err);
        let neither = in_place_of(&[NFT, LEGACY], "/dev/null");
        let (_, said) = told(&call.make(&place, &neither)?);
        assert_eq!(said["code"], 50, "{said:#}");
        let msg = said["msg"].as_str().unwrap_or_default();
        assert!(
            msg.contains("-027: no backend works on this node for iptables: iptables-nft: v4 refused: no"),
            "{msg}"
        );
    }
    Ok(())
}
