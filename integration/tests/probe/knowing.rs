//! The findings of a probe, how often a probe is repeated, and how an ADD uses the report.

use crate::{attempted, change, gybe, kept, later, namespaces, refused};
use gybe_integration::failure::Failure;
use gybe_integration::plugin_call::{PluginCall, PluginDir, pod};
use gybe_integration::programs::{path_of_ours, run};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

#[test]
fn a_probe_tells_of_every_backend_what_works_and_which_one_writes() -> Result<(), Failure> {
    let place = PluginDir::new("probe-tells");
    let ran = gybe(&place, "probe --json", "")?;
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    let told: Value = serde_json::from_str(&ran.out)?;
    for backend in ["nft", "iptables-nft", "iptables-legacy"] {
        for profile in ["v4", "v4+v6", "dns", "tproxy", "lists"] {
            assert_eq!(
                told["backends"][backend][profile]["finding"], "works",
                "{backend} {profile}: {told:#}"
            );
        }
    }
    assert_eq!((&told["requested"], &told["chosen"]["backend"]), (&json!("auto"), &json!("nft")));
    let modes = [kept(&place), place.run().join("gybe")]
        .map(|path| fs::metadata(path).map(|m| m.permissions().mode()));
    assert_eq!(modes.into_iter().collect::<Result<Vec<_>, _>>()?, [0o100_644, 0o040_755]);
    let people = gybe(&place, "probe --backend iptables", "")?;
    assert!(
        people.out.starts_with(
            "BACKEND          POLICY  FINDING\nnft              all     works\niptables-nft     all     works\n"
        ),
        "{}",
        people.out
    );
    assert!(
        people.out.ends_with("\niptables-nft writes the rules (iptables: iptables-nft does everything)\n")
    );
    Ok(())
}

#[test]
fn what_is_known_is_not_found_out_again_unless_somebody_asks() -> Result<(), Failure> {
    let place = PluginDir::new("probe-again");
    let gybe = path_of_ours("gybe")?;
    let probe = format!("{} probe --json", gybe.display());
    assert_eq!(namespaces(&place, &probe)?, 15, "five profiles, three backends");
    assert_eq!(namespaces(&place, &probe)?, 0);
    assert_eq!(namespaces(&place, &format!("{probe} --fresh"))?, 15);
    change(&place, "/kernel", json!("2.6.32"))?;
    assert_eq!(namespaces(&place, &probe)?, 15);
    Ok(())
}

/// An unprivileged user may probe in a user namespace, whose findings differ from the host's.
#[test]
fn a08_what_another_user_has_kept_is_not_believed() -> Result<(), Failure> {
    let place = PluginDir::new("probe-stranger");
    let probe = format!("{} probe --json", path_of_ours("gybe")?.display());
    assert_eq!((namespaces(&place, &probe)?, namespaces(&place, &probe)?), (15, 0));
    chown(kept(&place), Some(1000), Some(1000))?;
    assert_eq!(namespaces(&place, &probe)?, 15);
    let (made, ran) = attempted(&place, &PluginCall::add(&pod()?, &place)?.with_backend("auto"))?;
    assert_eq!((ran.code, made), (Some(0), 0), "root's own again: {ran:#?}");
    chown(kept(&place), Some(1000), Some(1000))?;
    let (made, ran) = attempted(&place, &PluginCall::add(&pod()?, &place)?.with_backend("auto"))?;
    assert_eq!((ran.code, made), (Some(0), 5), "{ran:#?}");
    Ok(())
}

#[test]
fn of_many_that_know_nothing_one_finds_out() -> Result<(), Failure> {
    let place = PluginDir::new("probe-once");
    let gybe = path_of_ours("gybe")?;
    let many = format!("for n in 1 2 3 4 5 6 7 8; do {} probe >/dev/null & done; wait", gybe.display());
    assert_eq!(namespaces(&place, &format!("sh -c '{many}'"))?, 15);
    Ok(())
}

#[test]
fn an_add_without_a_word_finds_out_what_it_needs_and_the_next_one_knows() -> Result<(), Failure> {
    let place = PluginDir::new("probe-add");
    for (pod, attempts) in [(pod()?, 5), (pod()?, 0)] {
        let (made, ran) = attempted(&place, &PluginCall::add(&pod, &place)?.with_backend("auto"))?;
        assert_eq!((ran.code, made), (Some(0), attempts), "nftables does all that is needed: {ran:#?}");
        assert!(ran.err.contains(r#""tool":"nft""#), "{}", ran.err);
    }
    let known: Value = serde_json::from_str(&fs::read_to_string(kept(&place))?)?;
    assert_eq!(known["backends"].as_object().map(serde_json::Map::len), Some(1), "{known}");
    Ok(())
}

#[test]
fn f28_what_is_known_costs_an_add_the_reading_of_two_small_files() -> Result<(), Failure> {
    let place = PluginDir::new("probe-cost");
    gybe(&place, "probe", "")?;
    let calls = |backend: &str| -> Result<(Vec<String>, usize), Failure> {
        let (pod, record) = (pod()?, place.path().join("record"));
        let strace = format!("strace -f -qq -e trace=openat,socket,clone3,clone -o {}", record.display());
        let ran = PluginCall::add(&pod, &place)?.with_backend(backend).run(&place, &strace)?;
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
    let (mut known, others) = calls("auto")?;
    let (word, others_by_word) = calls("nft")?;
    assert_eq!(others, others_by_word);
    for file in ["/proc/sys/kernel/random/boot_id", "/run/gybe/probe.json"] {
        let place = known.iter().position(|opened| opened == file);
        known.remove(place.ok_or_else(|| Failure::new(format!("{file}: {known:?}")))?);
    }
    // Who called is looked for by its number, which is another each time.
    let numberless = |file: String| {
        let parts = file.split(|letter: char| letter.is_ascii_digit()).filter(|part| !part.is_empty());
        parts.collect::<Vec<_>>().join("#")
    };
    let named = |files: Vec<String>| -> Vec<String> {
        files.into_iter().filter(|file| !file.contains("/fd/")).map(numberless).collect()
    };
    assert_eq!(named(known), named(word));
    Ok(())
}

#[test]
fn f23_a_pod_that_needs_what_this_node_cannot_do_is_refused_and_nothing_written() -> Result<(), Failure> {
    let (place, pod) = (PluginDir::new("probe-ipv6"), pod()?);
    gybe(&place, "probe", "")?;
    change(&place, "/backends/nft/v4+v6", refused("no inet NAT of IPv6"))?;
    let ran = PluginCall::add(&pod, &place)?.with_backend("auto").run(&place, "")?;
    let told: Value = serde_json::from_str(&ran.out)?;
    assert_eq!(told["code"], 999);
    let said = "gybe-cni cmdAdd GYBE-ADD-028: the pod's IPv6 must be redirected, which nft cannot do on this node: \
                refused: no inet NAT of IPv6";
    assert_eq!(told["msg"], said);
    assert_eq!(pod.run(|| run("nft", &["list", "ruleset"], ""))??.out, "");
    Ok(())
}

#[test]
fn f23_that_nothing_works_is_said_with_what_to_do_and_tried_again_soon() -> Result<(), Failure> {
    let (place, pod) = (PluginDir::new("probe-nothing"), pod()?);
    gybe(&place, "probe", "")?;
    for backend in ["nft", "iptables-nft", "iptables-legacy"] {
        change(&place, &format!("/backends/{backend}/v4"), refused("no NAT"))?;
    }
    let call = PluginCall::add(&pod, &place)?.with_backend("auto");
    let told: Value = serde_json::from_str(&call.run(&place, "")?.out)?;
    assert_eq!(told["code"], 50);
    let said = told["msg"].as_str().unwrap_or_default();
    assert!(
        said.starts_with("gybe-cni cmdAdd GYBE-ADD-027: no backend works on this node for auto: nft: v4"),
        "{said}"
    );
    let ran = gybe(&place, "probe", "")?;
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    later(&place)?;
    assert_eq!(call.run(&place, "")?.code, Some(0));
    Ok(())
}

#[test]
fn f23_another_backend_is_chosen_where_nftables_does_not_do() -> Result<(), Failure> {
    let (place, pod) = (PluginDir::new("probe-other"), pod()?);
    gybe(&place, "probe", "")?;
    change(&place, "/backends/nft/lists", refused("no interval sets"))?;
    let call = PluginCall::add(&pod, &place)?.with_backend("auto");
    let ran = call.run(&place, "")?;
    assert!(ran.code == Some(0) && ran.err.contains(r#""tool":"iptables-nft""#), "{ran:#?}");
    // The backend that wrote the rules is checked, even if another would be chosen now.
    change(&place, "/backends/nft/lists", json!({ "finding": "works" }))?;
    assert_eq!(call.clone().with_verb("CHECK").run(&place, "")?.code, Some(0));
    let netns = pod.path().display().to_string();
    let inspected: Value =
        serde_json::from_str(&gybe(&place, &format!("inspect --json --netns {netns}"), "")?.out)?;
    assert_eq!(inspected["backend"], "iptables-nft");
    assert_eq!(gybe(&place, &format!("remove --netns {netns}"), "")?.code, Some(0));
    let left = gybe(&place, &format!("inspect --netns {netns}"), "")?;
    assert!(left.out.starts_with("no rules of Gybe in"), "{left:#?}");
    Ok(())
}

#[test]
fn a_word_that_leaves_the_choice_applies_verifies_and_removes() -> Result<(), Failure> {
    let place = PluginDir::new("probe-words");
    for (word, name) in [("auto", "nft"), ("iptables", "iptables-nft")] {
        let pod = pod()?;
        let words = |verb: &str| format!("{verb} --json --backend {word} --netns {}", pod.path().display());
        let policy = r#"{"enable_ipv6": true}"#;
        let told = |verb: &str| -> Result<Value, Failure> {
            Ok(serde_json::from_str(&gybe(&place, &words(verb), policy)?.out)?)
        };
        assert_eq!(told("apply --policy -")?["backend"], name);
        assert_eq!(told("verify --policy -")?["holds"], true);
        assert_eq!(told("inspect")?["backend"], name);
        assert_eq!(told("remove")?["backends"], json!([name]));
        assert_eq!(told("inspect")?["chains"], json!([]));
    }
    Ok(())
}

/// In a user namespace that maps only root, `xt_owner` rejects uid 1337 (`owner_check`), which is a real kernel error for
/// iptables; nftables compares the number.
#[test]
fn what_is_really_refused_is_said_with_the_rule_and_another_word_to_set() -> Result<(), Failure> {
    let place = PluginDir::new("probe-refused");
    let unshare = "exec unshare --user --map-root-user --net";
    let probe = format!("{unshare} {} probe --backend iptables", path_of_ours("gybe")?.display());
    let told: Value = serde_json::from_str(&place.sh(&format!("{probe} --json"), "")?.out)?;
    let refusal = &told["backends"]["iptables-nft"]["v4"];
    assert_eq!(
        (&refusal["finding"], &refusal["object"]),
        (&json!("refused"), &json!("rule \"proxy-to-own-pod-v4\""))
    );
    assert_eq!(told["backends"]["nft"]["v4"]["finding"], "works");
    assert!(told["untried"][0].as_str().is_some_and(|what| what.contains("uid 1337")), "{told:#}");
    assert_eq!(told["chosen"]["hint"], "nft works on this node: set backend to nft or to auto");
    let people = place.sh(&probe, "")?;
    assert_eq!(people.code, Some(1), "{people:#?}");
    assert!(people.out.contains("no backend works on this node for iptables: iptables-nft: v4 refused"));
    Ok(())
}

#[test]
fn where_nothing_can_be_kept_probing_works_all_the_same() -> Result<(), Failure> {
    let (place, pod) = (PluginDir::new("probe-unkept"), pod()?);
    let read_only = "mount -o remount,bind,ro /run &&";
    let ran = place.sh(&format!("{read_only} exec {} probe", path_of_ours("gybe")?.display()), "")?;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    assert!(ran.err.contains("note: the findings cannot be kept in /run/gybe: "), "{}", ran.err);
    let policy = r#"{"enable_ipv6": true}"#;
    let netns = pod.path().display().to_string();
    let apply =
        format!("{read_only} exec {} apply --policy - --netns {netns}", path_of_ours("gybe")?.display());
    let ran = place.sh(&apply, policy)?;
    assert!(ran.code == Some(0) && ran.out.ends_with(" with nft\n"), "{ran:#?}");
    Ok(())
}
