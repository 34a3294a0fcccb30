//! The commands with the policy file of an ambient pod.

use gybe_demo::testnet::namespace::{LinkEnd, Namespace, join};
use gybe_integration::failure::Failure;
use gybe_integration::programs::{Run, ours, run};
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::model::policy::InterfaceName;

const POLICY: &str = r#"{ "kind": "ambient" }"#;
const WITHOUT_DNS: &str = r#"{ "kind": "ambient", "redirect_dns": false }"#;

/// A pod with `eth0`, and the namespace at the other end of its link.
fn pod() -> Result<(Namespace, Namespace), Failure> {
    let (pod, node) = (Namespace::new()?, Namespace::new()?);
    let end = |namespace, v4: &str, v6: &str| -> Result<LinkEnd<'_>, Failure> {
        let addresses = vec![v4.parse()?, v6.parse()?];
        Ok(LinkEnd { namespace, name: InterfaceName::parse("eth0")?, addresses })
    };
    join(&end(&pod, "10.244.0.10/24", "fd00:10::10/64")?, &end(&node, "10.244.0.1/24", "fd00:10::1/64")?)?;
    Ok((pod, node))
}

fn gybe(words: &[&str], policy: &str) -> Result<Run, Failure> {
    ours("gybe", words, policy)
}

#[test]
fn every_backend_applies_verifies_and_removes_the_rules_of_an_ambient_policy() -> Result<(), Failure> {
    for kind in BackendKind::ALL {
        let (pod, _node) = pod()?;
        let netns = pod.path().to_string_lossy().into_owned();
        let run =
            |command, more: &[&str], policy| gybe(&[&[command, "--netns", &netns], more].concat(), policy);
        let file = ["--policy", "-"];
        let applied = run("apply", &["--policy", "-", "--backend", kind.name()], POLICY)?;
        assert_eq!(applied.code, Some(0), "{kind}: {applied:?}");
        let verified = run("verify", &file, POLICY)?;
        assert_eq!(verified.code, Some(0), "{kind}: {verified:?}");
        let other = run("verify", &file, WITHOUT_DNS)?;
        assert!(other.code == Some(1) && other.out.contains("dns-to-ztunnel-udp"), "{kind}: {other:?}");
        let inspected = run("inspect", &[], "")?;
        assert!(inspected.out.starts_with(&format!("{kind}, ambient: ")), "{kind}: {inspected:?}");
        for (packet, outcome) in [
            ("out tcp 10.1.2.3:80 --iface eth0", "15001"),
            ("out tcp 10.1.2.3:80 --iface eth0 --mark 0x539", "keeps its destination"),
            ("out tcp 10.1.2.3:80 --iface eth0 --mark 1337", "keeps its destination"),
            ("out udp 10.96.0.10:53 --iface eth0", "15053"),
            ("in tcp 10.244.0.10:8080", "15006"),
            ("in tcp [fd00:10::10]:8080 --from fd16:9254:7127:1337:ffff:ffff:ffff:ffff", "from-probe-v6"),
            ("in tcp 10.244.0.10:15008", "keeps its destination"),
        ] {
            let words: Vec<&str> = packet.split(' ').collect();
            let traced = run("trace", &[&file, words.as_slice()].concat(), POLICY)?;
            assert!(traced.out.matches(outcome).count() >= 2, "{kind} {packet}: {traced:?}");
            assert!(!traced.out.contains("DIFFERENT"), "{kind} {packet}: {traced:?}");
        }
        let removed = run("remove", &[], "")?;
        assert_eq!(removed.code, Some(0), "{kind}: {removed:?}");
        assert_eq!(run("verify", &file, POLICY)?.code, Some(1), "{kind}");
    }
    Ok(())
}

#[test]
fn the_rendered_script_makes_the_rules_that_apply_makes() -> Result<(), Failure> {
    for policy in [POLICY, WITHOUT_DNS] {
        let (pod, _node) = pod()?;
        let netns = pod.path().to_string_lossy().into_owned();
        let listed = || -> Result<String, Failure> {
            let listed = pod.run(|| run("nft", &["list", "table", "inet", "gybe"], ""))??;
            assert_eq!(listed.code, Some(0), "{listed:?}");
            Ok(listed.out)
        };
        let applied = gybe(&["apply", "--netns", &netns, "--policy", "-", "--backend", "nft"], policy)?;
        assert_eq!(applied.code, Some(0), "{applied:?}");
        let ours = listed()?;
        let script = gybe(&["render", "--policy", "-"], policy)?;
        let loaded = pod.run(|| run("nft", &["-f", "-"], &script.out))??;
        assert_eq!(loaded.code, Some(0), "{loaded:?}");
        assert_eq!(ours, listed()?);
        let verified = gybe(&["verify", "--netns", &netns, "--policy", "-"], policy)?;
        assert_eq!(verified.code, Some(0), "{verified:?}");
    }
    Ok(())
}
