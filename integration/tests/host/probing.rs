//! `gybe probe --host`: it runs the host's programs, stores the report on the host, and names missing capabilities.

use crate::world::{CAPABILITIES, Container, Host};
use gybe_integration::programs::ours;
use serde_json::Value;

const NFT: &str = "/usr/sbin/xtables-nft-multi";

#[test]
fn f23_the_hosts_own_programs_are_probed_and_the_report_is_stored_there() {
    let (host, container) = (Host::without("programs", &[NFT]), Container::new("programs"));
    let ran = container.sh(&(container.probe(&host, &CAPABILITIES) + " --keep --json"));
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:#?}");
    let told: Value = serde_json::from_str(&ran.out).unwrap();
    for profile in ["v4", "v4+v6", "dns", "tproxy", "lists"] {
        for backend in ["nft", "iptables-legacy"] {
            assert_eq!(
                told["backends"][backend][profile]["finding"], "works",
                "{backend} {profile}: {told:#}"
            );
        }
        let why = told["backends"]["iptables-nft"][profile]["why"].as_str().unwrap_or_default();
        assert_eq!(why, "no iptables-nft programs for IPv4 on this node", "{profile}");
    }
    assert_eq!(told["untried"], serde_json::json!([]));
    assert_eq!(host.findings()["backends"], told["backends"]);
    assert!(container.has_kept_nothing());
}

#[test]
fn without_the_hosts_processes_a_mounted_proc_shows_the_way() {
    let (host, container) = (Host::without("proc", &[NFT]), Container::new("proc"));
    let ran = container.sh(&(container.probe_by_mounted_proc(&host, &CAPABILITIES) + " --keep"));
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:#?}");
    assert_eq!(host.findings()["backends"]["iptables-legacy"]["v4"]["finding"], "works");
    assert!(container.has_kept_nothing());
}

#[test]
fn a_stored_report_does_not_replace_the_probe() {
    let (host, container) = (Host::without("fresh", &[NFT]), Container::new("fresh"));
    container.sh(&container.probe(&host, &CAPABILITIES));
    let mut doctored = host.findings();
    doctored["backends"]["nft"]["v4"] = serde_json::json!({ "finding": "misbehaves", "what": "of before" });
    std::fs::write(host.kept(), doctored.to_string()).unwrap();
    assert_eq!(container.sh(&container.probe(&host, &CAPABILITIES)).code, Some(0));
    assert_eq!(host.findings()["backends"]["nft"]["v4"]["finding"], "works");
}

#[test]
fn f36_without_a_capability_the_probe_names_it_and_stores_nothing() {
    let (host, container) = (Host::without("caps", &[]), Container::new("caps"));
    for lacking in CAPABILITIES {
        let rest: Vec<&str> = CAPABILITIES.into_iter().filter(|name| *name != lacking).collect();
        let ran = container.sh(&container.probe(&host, &rest));
        assert_eq!(ran.code, Some(2), "{lacking}: {ran:#?}");
        let name = lacking.to_uppercase();
        assert!(
            ran.err.contains(&format!("this process lacks capabilities to probe the host: CAP_{name} (")),
            "{}",
            ran.err
        );
        assert!(ran.err.ends_with(&format!("capabilities: {name}\n")), "{}", ran.err);
    }
    assert!(!host.kept().exists() && container.has_kept_nothing());
}

#[test]
fn without_the_hosts_processes_the_hint_names_the_flag() {
    let ran = ours("gybe", &["probe", "--host", "--mount-namespace", "/proc/self/ns/mnt"], "").unwrap();
    assert_eq!(ran.code, Some(2), "{ran:#?}");
    assert!(ran.err.contains("is the mount namespace that gybe itself runs in"), "{}", ran.err);
    assert!(ran.err.contains("hint: in a pod mount the host's /proc"), "{}", ran.err);
}

#[test]
fn f11_a_report_that_must_be_stored_and_cannot_be_is_a_failure() {
    let host = Host::without("unkept", &[]);
    let container = Container::new("unkept");
    // A file in place of the directory, which makes creating it fail as a read-only /run would.
    std::fs::write(host.kept().parent().unwrap(), "").unwrap();
    let probe = container.probe(&host, &CAPABILITIES);
    let ran = container.sh(&format!("{probe} --keep"));
    assert_eq!(ran.code, Some(2), "{ran:#?}");
    assert!(ran.err.starts_with("gybe: the findings cannot be kept in /run/gybe: "), "{}", ran.err);
    let ran = container.sh(&probe);
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    assert!(ran.err.contains("note: the findings cannot be kept in /run/gybe"), "{}", ran.err);
}
