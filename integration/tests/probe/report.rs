//! The findings of a probe, how often a probe is repeated, and how an ADD uses the report.

use crate::{
    age_report, call_and_count_probes, change_report, count_probes, gybe, refused_finding, report_path,
};
use gybe_integration::failure::Failure;
use gybe_integration::plugin_call::{PluginCall, PluginDir, pod};
use gybe_integration::programs::{path_of_ours, run};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

#[test]
fn a_probe_reports_what_works_with_each_backend_and_the_chosen_one() -> Result<(), Failure> {
    let directory = PluginDir::new("probe-reports");
    let ran = gybe(&directory, "probe --json", "")?;
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    let report: Value = serde_json::from_str(&ran.out)?;
    for backend in ["nft", "iptables-nft", "iptables-legacy"] {
        for profile in ["v4", "v4+v6", "dns", "tproxy", "lists"] {
            assert_eq!(
                report["backends"][backend][profile]["finding"], "works",
                "{backend} {profile}: {report:#}"
            );
        }
    }
    assert_eq!((&report["requested"], &report["chosen"]["backend"]), (&json!("auto"), &json!("nft")));
    let modes = [report_path(&directory), directory.run().join("gybe")]
        .map(|path| fs::metadata(path).map(|m| m.permissions().mode()));
    assert_eq!(modes.into_iter().collect::<Result<Vec<_>, _>>()?, [0o100_644, 0o040_755]);
    let text = gybe(&directory, "probe --backend iptables", "")?;
    assert!(
        text.out.starts_with(
            "BACKEND          POLICY  FINDING\nnft              all     works\niptables-nft     all     works\n"
        ),
        "{}",
        text.out
    );
    assert!(text.out.ends_with("\niptables-nft writes the rules (iptables: iptables-nft does everything)\n"));
    Ok(())
}

#[test]
fn a_stored_report_is_used_again_unless_fresh_is_given_or_the_kernel_changed() -> Result<(), Failure> {
    let directory = PluginDir::new("probe-again");
    let gybe = path_of_ours("gybe")?;
    let probe = format!("{} probe --json", gybe.display());
    assert_eq!(count_probes(&directory, &probe)?, 15, "five profiles, three backends");
    assert_eq!(count_probes(&directory, &probe)?, 0);
    assert_eq!(count_probes(&directory, &format!("{probe} --fresh"))?, 15);
    change_report(&directory, "/kernel", json!("2.6.32"))?;
    assert_eq!(count_probes(&directory, &probe)?, 15);
    Ok(())
}

/// An unprivileged user may probe in a user namespace, whose findings differ from the host's.
#[test]
fn a08_a_report_of_another_user_is_not_used() -> Result<(), Failure> {
    let directory = PluginDir::new("probe-stranger");
    let probe = format!("{} probe --json", path_of_ours("gybe")?.display());
    assert_eq!((count_probes(&directory, &probe)?, count_probes(&directory, &probe)?), (15, 0));
    chown(report_path(&directory), Some(1000), Some(1000))?;
    assert_eq!(count_probes(&directory, &probe)?, 15);
    let (made, ran) =
        call_and_count_probes(&directory, &PluginCall::add(&pod()?, &directory)?.with_backend("auto"))?;
    assert_eq!((ran.code, made), (Some(0), 0), "the report is root's again: {ran:#?}");
    chown(report_path(&directory), Some(1000), Some(1000))?;
    let (made, ran) =
        call_and_count_probes(&directory, &PluginCall::add(&pod()?, &directory)?.with_backend("auto"))?;
    assert_eq!((ran.code, made), (Some(0), 5), "{ran:#?}");
    Ok(())
}

#[test]
fn of_concurrent_probes_one_probes_the_node() -> Result<(), Failure> {
    let directory = PluginDir::new("probe-once");
    let gybe = path_of_ours("gybe")?;
    let many = format!("for n in 1 2 3 4 5 6 7 8; do {} probe >/dev/null & done; wait", gybe.display());
    assert_eq!(count_probes(&directory, &format!("sh -c '{many}'"))?, 15);
    Ok(())
}

#[test]
fn an_add_with_backend_auto_probes_what_it_needs_and_the_next_one_uses_the_report() -> Result<(), Failure> {
    let directory = PluginDir::new("probe-add");
    for (pod, attempts) in [(pod()?, 5), (pod()?, 0)] {
        let (made, ran) =
            call_and_count_probes(&directory, &PluginCall::add(&pod, &directory)?.with_backend("auto"))?;
        assert_eq!((ran.code, made), (Some(0), attempts), "nftables does all that is needed: {ran:#?}");
        assert!(ran.err.contains(r#""tool":"nft""#), "{}", ran.err);
    }
    let known: Value = serde_json::from_str(&fs::read_to_string(report_path(&directory))?)?;
    assert_eq!(known["backends"].as_object().map(serde_json::Map::len), Some(1), "{known}");
    Ok(())
}

#[test]
fn f28_with_a_stored_report_an_add_reads_two_more_files() -> Result<(), Failure> {
    let directory = PluginDir::new("probe-cost");
    gybe(&directory, "probe", "")?;
    let calls = |backend: &str| -> Result<(Vec<String>, usize), Failure> {
        let (pod, record) = (pod()?, directory.path().join("record"));
        let strace = format!("strace -f -qq -e trace=openat,socket,clone3,clone -o {}", record.display());
        let ran = PluginCall::add(&pod, &directory)?.with_backend(backend).run(&directory, &strace)?;
        assert_eq!(ran.code, Some(0), "{ran:#?}");
        let record = fs::read_to_string(record)?;
        // env(1) opens files first; the plugin's own begin with its namespace.
        let own = record.find("/proc/thread-self/ns/net").unwrap_or_default();
        let opened = record.split_at(own).1.lines().filter_map(|line| line.split('"').nth(1));
        let others = record.lines().filter(|line| !line.contains("openat")).count();
        let sockets = |kind: &str| record.lines().filter(|line| line.contains(kind)).count();
        assert_eq!((sockets("NETLINK_NETFILTER"), sockets("NETLINK_ROUTE")), (1, 1), "{record}");
        Ok((opened.map(str::to_owned).collect(), others))
    };
    let (mut with_report, others) = calls("auto")?;
    let (configured, others_configured) = calls("nft")?;
    assert_eq!(others, others_configured);
    for file in ["/proc/sys/kernel/random/boot_id", "/run/gybe/probe.json"] {
        let directory = with_report.iter().position(|opened| opened == file);
        with_report.remove(directory.ok_or_else(|| Failure::new(format!("{file}: {with_report:?}")))?);
    }
    // The caller's process id differs each time.
    let numberless = |file: String| {
        let parts = file.split(|letter: char| letter.is_ascii_digit()).filter(|part| !part.is_empty());
        parts.collect::<Vec<_>>().join("#")
    };
    let named = |files: Vec<String>| -> Vec<String> {
        files.into_iter().filter(|file| !file.contains("/fd/")).map(numberless).collect()
    };
    assert_eq!(named(with_report), named(configured));
    Ok(())
}

#[test]
fn f23_a_pod_that_needs_an_unsupported_feature_is_refused_and_nothing_is_written() -> Result<(), Failure> {
    let (directory, pod) = (PluginDir::new("probe-ipv6"), pod()?);
    gybe(&directory, "probe", "")?;
    change_report(&directory, "/backends/nft/v4+v6", refused_finding("no inet NAT of IPv6"))?;
    let ran = PluginCall::add(&pod, &directory)?.with_backend("auto").run(&directory, "")?;
    let report: Value = serde_json::from_str(&ran.out)?;
    assert_eq!(report["code"], 999);
    let message = "gybe-cni cmdAdd GYBE-ADD-028: the pod's IPv6 must be redirected, which nft cannot do on this node: \
                refused: no inet NAT of IPv6";
    assert_eq!(report["msg"], message);
    assert_eq!(pod.run(|| run("nft", &["list", "ruleset"], ""))??.out, "");
    Ok(())
}

#[test]
fn f23_without_a_working_backend_add_fails_and_the_probe_is_repeated() -> Result<(), Failure> {
    let (directory, pod) = (PluginDir::new("probe-nothing"), pod()?);
    gybe(&directory, "probe", "")?;
    for backend in ["nft", "iptables-nft", "iptables-legacy"] {
        change_report(&directory, &format!("/backends/{backend}/v4"), refused_finding("no NAT"))?;
    }
    let call = PluginCall::add(&pod, &directory)?.with_backend("auto");
    let report: Value = serde_json::from_str(&call.run(&directory, "")?.out)?;
    assert_eq!(report["code"], 50);
    let message = report["msg"].as_str().unwrap_or_default();
    assert!(
        message.starts_with("gybe-cni cmdAdd GYBE-ADD-027: no backend works on this node for auto: nft: v4"),
        "{message}"
    );
    let ran = gybe(&directory, "probe", "")?;
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    age_report(&directory)?;
    assert_eq!(call.run(&directory, "")?.code, Some(0));
    Ok(())
}

#[test]
fn f23_another_backend_is_chosen_where_nftables_does_not_suffice() -> Result<(), Failure> {
    let (directory, pod) = (PluginDir::new("probe-other"), pod()?);
    gybe(&directory, "probe", "")?;
    change_report(&directory, "/backends/nft/lists", refused_finding("no interval sets"))?;
    let call = PluginCall::add(&pod, &directory)?.with_backend("auto");
    let ran = call.run(&directory, "")?;
    assert!(ran.code == Some(0) && ran.err.contains(r#""tool":"iptables-nft""#), "{ran:#?}");
    // The backend that wrote the rules is checked, even if another would be chosen now.
    change_report(&directory, "/backends/nft/lists", json!({ "finding": "works" }))?;
    assert_eq!(call.clone().with_verb("CHECK").run(&directory, "")?.code, Some(0));
    let netns = pod.path().display().to_string();
    let inspected: Value =
        serde_json::from_str(&gybe(&directory, &format!("inspect --json --netns {netns}"), "")?.out)?;
    assert_eq!(inspected["backend"], "iptables-nft");
    assert_eq!(gybe(&directory, &format!("remove --netns {netns}"), "")?.code, Some(0));
    let left = gybe(&directory, &format!("inspect --netns {netns}"), "")?;
    assert!(left.out.starts_with("no rules of Gybe in"), "{left:#?}");
    Ok(())
}

#[test]
fn commands_choose_the_backend_for_auto_and_iptables() -> Result<(), Failure> {
    let directory = PluginDir::new("probe-words");
    for (configured, name) in [("auto", "nft"), ("iptables", "iptables-nft")] {
        let pod = pod()?;
        let words =
            |verb: &str| format!("{verb} --json --backend {configured} --netns {}", pod.path().display());
        let policy = r#"{"enable_ipv6": true}"#;
        let json_of = |verb: &str| -> Result<Value, Failure> {
            Ok(serde_json::from_str(&gybe(&directory, &words(verb), policy)?.out)?)
        };
        assert_eq!(json_of("apply --policy -")?["backend"], name);
        assert_eq!(json_of("verify --policy -")?["holds"], true);
        assert_eq!(json_of("inspect")?["backend"], name);
        assert_eq!(json_of("remove")?["backends"], json!([name]));
        assert_eq!(json_of("inspect")?["chains"], json!([]));
    }
    Ok(())
}

/// In a user namespace that maps only root, `xt_owner` rejects uid 1337 (`owner_check`), which is a real kernel error
/// for iptables; nftables compares the number.
#[test]
fn a_refusal_by_the_kernel_is_reported_with_the_rule_and_another_backend() -> Result<(), Failure> {
    let directory = PluginDir::new("probe-refused");
    let unshare = "exec unshare --user --map-root-user --net";
    let probe = format!("{unshare} {} probe --backend iptables", path_of_ours("gybe")?.display());
    let report: Value = serde_json::from_str(&directory.sh(&format!("{probe} --json"), "")?.out)?;
    let refusal = &report["backends"]["iptables-nft"]["v4"];
    assert_eq!(
        (&refusal["finding"], &refusal["object"]),
        (&json!("refused"), &json!("rule \"proxy-to-own-pod-v4\""))
    );
    assert_eq!(report["backends"]["nft"]["v4"]["finding"], "works");
    assert!(report["untried"][0].as_str().is_some_and(|what| what.contains("uid 1337")), "{report:#}");
    assert_eq!(report["chosen"]["hint"], "nft works on this node: set backend to nft or to auto");
    let text = directory.sh(&probe, "")?;
    assert_eq!(text.code, Some(1), "{text:#?}");
    assert!(text.out.contains("no backend works on this node for iptables: iptables-nft: v4 refused"));
    Ok(())
}

#[test]
fn probing_works_where_the_report_cannot_be_stored() -> Result<(), Failure> {
    let (directory, pod) = (PluginDir::new("probe-unkept"), pod()?);
    let read_only = "mount -o remount,bind,ro /run &&";
    let ran = directory.sh(&format!("{read_only} exec {} probe", path_of_ours("gybe")?.display()), "")?;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    assert!(ran.err.contains("note: the findings cannot be kept in /run/gybe: "), "{}", ran.err);
    let policy = r#"{"enable_ipv6": true}"#;
    let netns = pod.path().display().to_string();
    let apply =
        format!("{read_only} exec {} apply --policy - --netns {netns}", path_of_ours("gybe")?.display());
    let ran = directory.sh(&apply, policy)?;
    assert!(ran.code == Some(0) && ran.out.ends_with(" with nft\n"), "{ran:#?}");
    Ok(())
}
