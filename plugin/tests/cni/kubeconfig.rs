//! A kubeconfig, and the program `gybe` that queries the API server by it: missing, failing, silent, and
//! endless ones, within the deadline.

use crate::{GYBE_CNI, Outcome, Pods, environment, install, meshed, run_at};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const STATUS: &str = "sidecar.istio.io/status";

/// A directory with the plugin and a kubeconfig, and with a script as `gybe`.
struct PluginDirectory(Pods);

impl PluginDirectory {
    fn new(test: &str) -> Self {
        let pods = Pods::new(&format!("kc-{test}"));
        install(GYBE_CNI.as_ref(), &pods.0.join("gybe-cni"));
        fs::write(pods.0.join("kubeconfig"), "kind: Config").unwrap();
        Self(pods)
    }

    fn kubeconfig(&self) -> PathBuf {
        self.0.0.join("kubeconfig")
    }

    /// Installs a shell script as `gybe`.
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

    /// Asserts that a meshed pod is refused with this code and these words, and that calls which need no facts
    /// succeed.
    fn assert_refused(&self, code: u64, words: &[&str]) {
        let outcome = self.call("ADD", "shop", &self.entry());
        let message = outcome.message();
        assert_eq!((outcome.exit, outcome.code()), (Some(1), Some(code)), "{outcome:?}");
        assert!(message.starts_with("gybe-cni cmdAdd GYBE-ADD-033: kubeconfig /"), "{message}");
        assert!(words.iter().all(|word| message.contains(word)), "{words:?} in {message}");
        assert_eq!(self.call("ADD", "bank", &self.entry()).exit, Some(0));
        assert_eq!(self.call("DEL", "shop", &self.entry()).exit, Some(0));
        let mut unmeshed = self.entry();
        unmeshed["runtimeConfig"]["io.kubernetes.cri.pod-annotations"] = json!({});
        assert_eq!(self.call("ADD", "shop", &unmeshed).exit, Some(0));
    }
}

#[test]
fn a_kubeconfig_that_cannot_be_read_is_named_in_the_error() {
    let directory = PluginDirectory::new("missing");
    fs::remove_file(directory.kubeconfig()).unwrap();
    directory.assert_refused(7, &["kubeconfig cannot be read: No such file"]);
    nix::unistd::mkfifo(&directory.kubeconfig(), nix::sys::stat::Mode::S_IRWXU).unwrap();
    directory.assert_refused(7, &["not a regular file"]);
    fs::remove_file(directory.kubeconfig()).unwrap();
    fs::create_dir(directory.kubeconfig()).unwrap();
    directory.assert_refused(7, &["not a regular file"]);
}

#[test]
fn the_errors_of_agent_and_kubeconfig_are_both_named() {
    let directory = PluginDirectory::new("behind");
    fs::remove_file(directory.kubeconfig()).unwrap();
    let mut entry = directory.entry();
    entry["facts"]["socket"] = json!(directory.0.0.join("facts.sock"));
    let message = directory.call("ADD", "shop", &entry).message();
    assert!(message.contains("ADD-032") && message.contains("kubeconfig cannot be read"), "{message}");
}

#[test]
fn a_missing_program_is_named_by_its_path() {
    let directory = PluginDirectory::new("alone");
    directory.assert_refused(7, &["/gybe,", "cannot be run: No such file"]);
}

#[test]
fn the_program_gets_the_request_and_no_variable_of_the_runtime() {
    let mut pod = meshed(&[]);
    pod["metadata"]["uid"] = "u1".into();
    let response = json!({ "version": 1, "pod": pod }).to_string();
    let directory = PluginDirectory::new("asked");
    let record = directory.0.0.join("record");
    let script =
        format!("exec 3>&1 >'{}'; echo \"$@\"; pwd; env; cat; echo '{response}' >&3", record.display());
    let directory = directory.gybe(&script);
    let outcome = directory.call("ADD", "shop", &directory.entry());
    // The next step fails: the namespace does not exist.
    assert!(outcome.message().contains("GYBE-ADD-020"), "{outcome:?}");
    let record = fs::read_to_string(record).unwrap();
    let lines: Vec<_> = record.lines().collect();
    let kubeconfig = directory.kubeconfig();
    let words = format!("pod-facts --kubeconfig {} --deadline-ms ", kubeconfig.display());
    let deadline: u64 = lines[0].strip_prefix(&words).unwrap().parse().unwrap();
    assert!((1..1500).contains(&deadline), "{deadline}");
    assert_eq!(lines[1], "/");
    assert!(!record.contains("SECRET") && !record.contains("CNI_"), "{record}");
    let request: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
    assert_eq!(
        request,
        json!({ "version": 1, "namespace": "shop", "name": "cart-0", "uid": "u1", "deadline_ms": null })
    );
}

#[test]
fn the_programs_errors_are_passed_on() {
    let gave_up =
        PluginDirectory::new("gave-up").gybe("echo 'gybe: kubeconfig has no current-context' >&2; exit 2");
    gave_up.assert_refused(11, &["gybe: kubeconfig has no current-context"]);
    let silent = PluginDirectory::new("silent-end").gybe("exit 2");
    silent.assert_refused(11, &["exit status: 2"]);
    let fault = PluginDirectory::new("fault")
        .gybe(r#"echo '{"version": 1, "fault": "the API server responded 403: no"}'"#);
    fault.assert_refused(11, &["the API server responded 403: no"]);
    let unknown = PluginDirectory::new("unknown").gybe(r#"echo '{"version": 1}'"#);
    let message = unknown.call("ADD", "shop", &unknown.entry()).message();
    assert!(message.contains("GYBE-ADD-017") && message.contains("has no shop/cart-0"), "{message}");
}

#[test]
fn a10_a_program_that_never_ends_or_writes_endlessly_is_an_error_within_the_deadline() {
    let silent = PluginDirectory::new("silent").gybe("exec sleep 60");
    silent.assert_refused(11, &["gave no answer within"]);
    let garbage = PluginDirectory::new("garbage").gybe("echo 'HTTP/1.1 200 OK'");
    garbage.assert_refused(11, &["gave an answer that is malformed"]);
    let endless = PluginDirectory::new("endless").gybe("exec cat /dev/zero");
    endless.assert_refused(11, &["gave "]);
    let verbose = PluginDirectory::new("verbose").gybe("cat /dev/zero >&2; exit 1");
    verbose.assert_refused(11, &["gave no answer"]);
}
