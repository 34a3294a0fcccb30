//! `gybe render` prints what `gybe apply` writes, compared with nft(8).
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use gybe_installer::testnet::namespace::Namespace;
use gybe_integration::programs::{Run, ours, run};
use gybe_integration::vectors;

fn gybe(arguments: &[&str], policy: &str) -> String {
    let run = ours("gybe", arguments, policy).unwrap();
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""), "gybe {arguments:?} with {policy}");
    run.out
}

fn nft(namespace: &Namespace, arguments: &[&str], script: &str) -> Run {
    namespace.run(|| run("nft", arguments, script)).unwrap().unwrap()
}

fn table(namespace: &Namespace) -> String {
    let listed = nft(namespace, &["list", "table", "inet", "gybe"], "");
    assert_eq!((listed.code, listed.err.as_str()), (Some(0), ""));
    listed.out
}

#[test]
fn nft_accepts_every_script_and_lists_the_rules_that_apply_writes() {
    for (name, policy) in vectors::policy_files().unwrap() {
        let script = gybe(&["render", "--backend", "nft", "--policy", "-"], &policy);
        let (by_nft, by_gybe) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        for arguments in [["-c", "-f", "-"].as_slice(), &["-f", "-"], &["-c", "-f", "-"]] {
            let taken = nft(&by_nft, arguments, &script);
            assert_eq!(
                (taken.code, taken.err.as_str()),
                (Some(0), ""),
                "{name}: nft {arguments:?}\n{script}"
            );
        }
        let path = by_gybe.path();
        gybe(&["apply", "--backend", "nft", "--policy", "-", "--netns", &path.to_string_lossy()], &policy);
        let (by_nft, by_gybe) = (table(&by_nft), table(&by_gybe));
        let lines = by_nft.lines().zip(by_gybe.lines()).enumerate();
        let differ: Vec<_> = lines.filter(|(_, (left, right))| left != right).take(5).collect();
        assert_eq!(differ, [], "{name}: first lines that differ (by nft, by gybe)");
        assert_eq!(by_nft.lines().count(), by_gybe.lines().count(), "{name}");
    }
}

#[test]
fn loading_the_script_twice_changes_nothing() {
    let namespace = Namespace::new().unwrap();
    let load = |script: &str| assert_eq!(nft(&namespace, &["-f", "-"], script).code, Some(0));
    let other = gybe(&["render", "--policy", "-"], r#"{"redirect_dns": true, "capture_all_dns": true}"#);
    let script = gybe(&["render", "--policy", "-"], "{}");
    load(&script);
    let once = table(&namespace);
    load(&other);
    assert_ne!(table(&namespace), once);
    load(&script);
    assert_eq!(table(&namespace), once);
}

#[test]
fn nft_accepts_the_comment_about_a_pod_that_is_left_alone() {
    let namespace = Namespace::new().unwrap();
    let pod = "{kind: Pod, spec: {containers: [{name: app}]}}";
    let script = ours("gybe", &["render", "--pod", "-"], pod).unwrap().out;
    assert!(script.starts_with("# "), "{script}");
    assert_eq!(nft(&namespace, &["-c", "-f", "-"], &script).code, Some(0));
}
