//! A kubeconfig, and the program beside the plugin that asks by it: who may stand there in its place,
//! and never longer than the deadline.

use crate::call::environment;
use crate::pods::{Pods, meshed};
use crate::program::{GYBE_CNI, Outcome, install, run_at};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const STATUS: &str = "sidecar.istio.io/status";

/// A directory with the plugin, a kubeconfig, and whoever stands beside them.
struct Place(Pods);

impl Place {
    fn new(test: &str) -> Self {
        let pods = Pods::new(&format!("kc-{test}"));
        install(GYBE_CNI.as_ref(), &pods.0.join("gybe-cni"));
        fs::write(pods.0.join("kubeconfig"), "kind: Config").unwrap();
        Self(pods)
    }

    fn kubeconfig(&self) -> PathBuf {
        self.0.0.join("kubeconfig")
    }

    /// A `gybe` that does this.
    fn gybe(self, script: &str) -> Self {
        let written = self.0.0.join("written");
        fs::write(&written, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&written, fs::Permissions::from_mode(0o755)).unwrap();
        install(&written, &self.0.0.join("gybe"));
        self
    }

    fn call(&self, verb: &str, namespace: &str, entry: &Value) -> Outcome {
        let args =
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME=cart-0;K8S_POD_UID=u1");
        let env = environment(verb, &args).into_iter().chain([("SECRET", "of the runtime")]);
        let before = Instant::now();
        let outcome = run_at(&self.0.0.join("gybe-cni"), env, &entry.to_string());
        assert!(before.elapsed() < Duration::from_secs(20), "{:?}: {outcome:?}", before.elapsed());
        outcome
    }

    fn entry(&self) -> Value {
        json!({
            "cniVersion": "1.0.0", "name": "net", "type": "gybe-cni", "pod_namespace": "gybe-system",
            "facts": { "socket": "", "deadline_ms": 1500 },
            "kubernetes": { "kubeconfig": self.kubeconfig(), "exclude_namespaces": ["bank"] },
            "runtimeConfig": { "io.kubernetes.cri.pod-annotations": { STATUS: "{}" } },
            "prevResult": { "cniVersion": "1.0.0" },
        })
    }

    /// A meshed pod is refused with that code and those words; what needs nobody's word is not.
    fn refused(&self, code: u64, words: &[&str]) {
        let outcome = self.call("ADD", "shop", &self.entry());
        let told = outcome.message();
        assert_eq!((outcome.exit, outcome.code()), (Some(1), Some(code)), "{outcome:?}");
        assert!(told.starts_with("gybe-cni cmdAdd GYBE-ADD-033: kubeconfig /"), "{told}");
        assert!(words.iter().all(|word| told.contains(word)), "{words:?} in {told}");
        assert_eq!(self.call("ADD", "bank", &self.entry()).exit, Some(0));
        assert_eq!(self.call("DEL", "shop", &self.entry()).exit, Some(0));
        let mut unmeshed = self.entry();
        unmeshed["runtimeConfig"]["io.kubernetes.cri.pod-annotations"] = json!({});
        assert_eq!(self.call("ADD", "shop", &unmeshed).exit, Some(0));
    }
}

#[test]
fn a_kubeconfig_that_cannot_be_read_is_named_in_the_refusal() {
    let place = Place::new("missing");
    fs::remove_file(place.kubeconfig()).unwrap();
    place.refused(7, &["kubeconfig cannot be read: No such file"]);
    nix::unistd::mkfifo(&place.kubeconfig(), nix::sys::stat::Mode::S_IRWXU).unwrap();
    place.refused(7, &["not a regular file"]);
    fs::remove_file(place.kubeconfig()).unwrap();
    fs::create_dir(place.kubeconfig()).unwrap();
    place.refused(7, &["not a regular file"]);
}

#[test]
fn a_kubeconfig_behind_an_agent_is_named_too() {
    let place = Place::new("behind");
    fs::remove_file(place.kubeconfig()).unwrap();
    let mut entry = place.entry();
    entry["facts"]["socket"] = json!(place.0.0.join("facts.sock"));
    let told = place.call("ADD", "shop", &entry).message();
    assert!(told.contains("ADD-032") && told.contains("kubeconfig cannot be read"), "{told}");
}

#[test]
fn a_placeholder_that_the_installer_left_is_a_wrong_configuration() {
    let place = Place::new("placeholder");
    let mut entry = place.entry();
    entry["kubernetes"]["kubeconfig"] = "__KUBECONFIG_FILEPATH__".into();
    let told = place.call("ADD", "shop", &entry).message();
    assert!(told.contains("ADD-009") && told.contains("the installer left its placeholder"), "{told}");
    assert_eq!(place.call("DEL", "shop", &entry).exit, Some(0));
}

#[test]
fn without_the_program_that_asks_its_place_is_named() {
    let place = Place::new("alone");
    place.refused(7, &["/gybe,", "cannot be run: No such file"]);
}

#[test]
fn the_program_is_told_the_question_and_nothing_of_the_runtimes() {
    let mut pod = meshed(&[]);
    pod["metadata"]["uid"] = "u1".into();
    let answer = json!({ "version": 1, "pod": pod }).to_string();
    let place = Place::new("asked");
    let told = place.0.0.join("told");
    let script = format!("exec 3>&1 >'{}'; echo \"$@\"; pwd; env; cat; echo '{answer}' >&3", told.display());
    let place = place.gybe(&script);
    let outcome = place.call("ADD", "shop", &place.entry());
    // As far as the namespace, which is not there.
    assert!(outcome.message().contains("GYBE-ADD-020"), "{outcome:?}");
    let told = fs::read_to_string(told).unwrap();
    let lines: Vec<_> = told.lines().collect();
    let kubeconfig = place.kubeconfig();
    let words = format!("pod-facts --kubeconfig {} --deadline-ms ", kubeconfig.display());
    let deadline: u64 = lines[0].strip_prefix(&words).unwrap().parse().unwrap();
    assert!((1..1500).contains(&deadline), "{deadline}");
    assert_eq!(lines[1], "/");
    assert!(!told.contains("SECRET") && !told.contains("CNI_"), "{told}");
    let question: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
    assert_eq!(
        question,
        json!({ "version": 1, "namespace": "shop", "name": "cart-0", "uid": "u1", "deadline_ms": null })
    );
}

#[test]
fn what_the_program_says_is_told_on() {
    let gave_up = Place::new("gave-up").gybe("echo 'gybe: kubeconfig has no current-context' >&2; exit 2");
    gave_up.refused(11, &["gybe: kubeconfig has no current-context"]);
    let silent = Place::new("silent-end").gybe("exit 2");
    silent.refused(11, &["exit status: 2"]);
    let fault = Place::new("fault").gybe(r#"echo '{"version": 1, "fault": "the API server said 403: no"}'"#);
    fault.refused(11, &["the API server said 403: no"]);
    let unknown = Place::new("unknown").gybe(r#"echo '{"version": 1}'"#);
    let told = unknown.call("ADD", "shop", &unknown.entry()).message();
    assert!(told.contains("GYBE-ADD-017") && told.contains("has no shop/cart-0"), "{told}");
}

#[test]
fn f39_a_pod_of_another_life_is_not_used() {
    let mut pod = meshed(&[]);
    pod["metadata"]["uid"] = "u0".into();
    let place = Place::new("uid").gybe(&format!("echo '{}'", json!({ "version": 1, "pod": pod })));
    let told = place.call("ADD", "shop", &place.entry()).message();
    assert!(told.contains("GYBE-ADD-018") && told.contains("another pod"), "{told}");
}

#[test]
fn a10_a_program_that_never_ends_or_never_stops_talking_is_not_waited_for() {
    let silent = Place::new("silent").gybe("exec sleep 60");
    silent.refused(11, &["led to no answer within"]);
    let garbage = Place::new("garbage").gybe("echo 'HTTP/1.1 200 OK'");
    garbage.refused(11, &["led to an answer that is nonsense"]);
    let endless = Place::new("endless").gybe("exec cat /dev/zero");
    endless.refused(11, &["led to"]);
    let loud = Place::new("loud").gybe("cat /dev/zero >&2; exit 1");
    loud.refused(11, &["led to no answer"]);
}
