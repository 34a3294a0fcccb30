//! The validation of a pod, run inside it.

use crate::{APP, INJECTED, PROXY, Pod};
use std::time::{Duration, Instant};

#[test]
fn validation_fails_after_five_seconds_without_rules_and_passes_at_once_with_them() {
    let pod = Pod::new();
    let begun = Instant::now();
    let before = pod.gybe("validate");
    assert!(begun.elapsed() >= Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!((before.code, before.err.as_str()), (Some(126), ""));
    for expected in [
        "not redirected: no connection to 127.0.0.6:15002 by uid 1337 arrived at 127.0.0.1:15001 or 127.0.0.1:15006 within 5 s",
        "no process listens on 127.0.0.6:15002",
        "hint: the pod's rules are missing",
    ] {
        assert!(before.out.contains(expected), "{expected}: {}", before.out);
    }
    pod.succeed(&format!("istio-iptables {INJECTED}"));
    let passed = "redirected: a connection to 127.0.0.6:15002 arrived at 127.0.0.1:15006\n";
    assert_eq!(pod.succeed("validate"), passed);
}

#[test]
fn istio_validation_works_without_any_privilege() {
    let pod = Pod::new();
    let container = format!("istio-iptables {INJECTED} --run-validation --skip-rule-apply");
    let before = pod.gybe_as(1337, &format!("{container} --probe-timeout 1s"));
    assert_eq!(before.code, Some(126), "{}{}", before.out, before.err);
    assert_eq!(pod.rules(), "");
    pod.succeed(&format!("istio-iptables {INJECTED}"));
    let after = pod.gybe_as(1337, &container);
    assert_eq!((after.code, after.err.as_str()), (Some(0), ""), "{}", after.out);
    assert!(after.out.contains("arrived at 127.0.0.1:15006"), "{}", after.out);

    // The rules leave other users' connections to the pod itself alone.
    let other_user = pod.gybe_as(1000, &format!("{container} --probe-timeout 500ms"));
    assert_eq!(other_user.code, Some(126));
    assert!(
        other_user.out.contains("hint: uid 1000 may not act as the proxy's uid 1337"),
        "{}",
        other_user.out
    );
}

#[test]
fn init_writes_and_validates_in_one_run_for_either_family() {
    for (addresses, target) in [
        (("10.244.0.10/24", "10.244.0.1/24"), "127.0.0.6:15002 arrived at 127.0.0.1:15006"),
        (("fd00:10::10/64", "fd00:10::1/64"), "[::6]:15002 arrived at [::1]:15006"),
    ] {
        let pod = Pod::with_addresses(addresses.0, addresses.1);
        if target.starts_with('[') {
            let before = pod.gybe("validate --probe-timeout 100ms");
            assert_eq!(before.code, Some(126));
            assert!(before.out.contains("address ::6 is not on lo"), "{}", before.out);
        }
        let out = pod.succeed(&format!("istio-iptables {INJECTED} --run-validation"));
        assert!(out.lines().count() == 2 && out.contains(target), "{out}");
        let lost = pod.gybe(&format!(
            "istio-iptables {INJECTED} -u 5 --skip-rule-apply --run-validation --probe-timeout 100ms"
        ));
        assert_eq!(lost.code, Some(126), "rules of another proxy's user: {}", lost.out);
    }
}

#[test]
fn flags_without_a_command_validate_one_port() {
    let pod = Pod::new();
    let out = pod.succeed("-p 15001 -u 1337 -m REDIRECT -i * -x '' -b * -d '' --run-validation");
    assert!(out.contains("arrived at 127.0.0.1:15001"), "{out}");
}

#[test]
fn a_process_that_listens_on_the_test_or_proxy_ports_is_named() {
    let pod = Pod::new();
    let other_listener = pod.listen(APP, "app", &[15002]);
    let run = pod.gybe("validate --probe-timeout 100ms");
    assert_eq!(run.code, Some(126));
    let reached = "127.0.0.6:15002 was not redirected but reached process ";
    assert!(run.out.contains(reached) && run.out.contains("of uid 1000 at 0.0.0.0:15002"), "{}", run.out);
    drop(other_listener);

    let _envoy = pod.listen(PROXY, "envoy", &[15006]);
    pod.succeed(&format!("istio-iptables {INJECTED}"));
    let run = pod.gybe("validate --probe-timeout 100ms");
    assert_eq!(run.code, Some(126));
    assert!(run.out.starts_with("not determined: no connection"), "{}", run.out);
    assert!(run.out.contains("cannot listen on 127.0.0.1:15006: process "), "{}", run.out);
    assert!(run.out.contains("of uid 1337 at 0.0.0.0:15006"), "{}", run.out);
    assert!(run.out.contains("hint: run the validation before the proxy starts"), "{}", run.out);

    let _both = pod.listen(PROXY, "envoy", &[15001]);
    let begun = Instant::now();
    let run = pod.gybe("validate --probe-timeout 1m");
    assert_eq!(run.code, Some(126));
    assert!(begun.elapsed() < Duration::from_secs(30), "it must not wait");
    assert!(
        run.out.contains("could arrive: other processes listen on 127.0.0.1:15001 or 127.0.0.1:15006"),
        "{}",
        run.out
    );
    let found: serde_json::Value = serde_json::from_str(&pod.gybe("--json validate").out).unwrap();
    assert_eq!(found["redirected"], serde_json::Value::Null);
}

#[test]
fn a_dropped_connection_is_reported_as_unanswered() {
    let pod = Pod::new();
    pod.run_program("nft add table ip theirs");
    pod.run_program("nft add chain ip theirs out { type filter hook output priority 0 ; }");
    pod.run_program("nft add rule ip theirs out tcp dport 15002 drop");
    let run = pod.gybe("--json validate --probe-timeout 100ms");
    assert_eq!(run.code, Some(126));
    let found: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(found["redirected"], false);
    assert!(found["evidence"].to_string().contains("unanswered once"), "{found}");
}
