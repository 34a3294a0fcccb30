//! Pods with and without IPv6 on one node: each pod's network namespace decides.

use gybe_installer::testnet::namespace::Namespace;
use gybe_integration::failure::Failure;
use gybe_integration::plugin_call::{PluginCall, PluginDir, pod};
use gybe_integration::programs::{ours, run};

/// Creates the namespace of the example pod, whose policy has both families, and disables IPv6 in it.
fn without_ipv6() -> Result<Namespace, Failure> {
    let pod = pod()?;
    for interface in ["all", "default"] {
        pod.run(|| std::fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"), "1"))??;
    }
    let addresses = pod.run(|| run("ip", &["-6", "address"], ""))??;
    assert_eq!(addresses.out, "", "none is left");
    Ok(pod)
}

/// Makes an ADD; returns the log line about address families, and the rules that it wrote.
fn added(place: &PluginDir, pod: &Namespace) -> Result<(String, String), Failure> {
    let call = PluginCall::add(pod, place)?;
    let ran = call.run(place, "")?;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let line = ran.err.lines().find(|line| line.contains("cmdAdd")).unwrap_or_default().to_owned();
    let check = call.with_verb("CHECK").run(place, "")?;
    assert_eq!(check.code, Some(0), "{check:?}");
    let inspected = ours("gybe", &["inspect", "--netns", &pod.path().to_string_lossy()], "")?;
    Ok((line, inspected.out))
}

#[test]
fn f40_where_ipv6_is_off_ipv4_alone_is_redirected_and_that_is_told() -> Result<(), Failure> {
    let place = PluginDir::new("ipv6");
    // Alternately, because a result that the plugin wrongly kept from one pod would show in the next.
    for _ in 0..2 {
        let (line, rules) = added(&place, &without_ipv6()?)?;
        assert!(line.contains(r#""families":"ipv4""#), "{line}");
        assert!(rules.contains("outbound-to-proxy") && !rules.contains("::6"), "{rules}");
        let (line, rules) = added(&place, &pod()?)?;
        assert!(line.contains(r#""families":"ipv4 and ipv6""#), "{line}");
        assert!(rules.contains("outbound-to-proxy"), "{rules}");
    }
    Ok(())
}

#[test]
fn f40_each_backend_leaves_out_the_ipv6_that_is_not_there() -> Result<(), Failure> {
    let place = PluginDir::new("ipv6-backends");
    for backend in ["nft", "iptables-nft", "iptables-legacy"] {
        let pod = without_ipv6()?;
        let call = PluginCall::add(&pod, &place)?.with_backend(backend);
        for verb in ["ADD", "CHECK", "DEL"] {
            let ran = call.clone().with_verb(verb).run(&place, "")?;
            assert_eq!(ran.code, Some(0), "{backend} {verb}: {ran:?}");
        }
    }
    Ok(())
}
