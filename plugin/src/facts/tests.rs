//! Directories of manifests, good and bad.

use super::*;
use crate::args::Caller;
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// A directory of this test's own, gone when it ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gybe-facts-{test}-{}", std::process::id()));
        fs::create_dir_all(path.join("shop")).unwrap();
        Self(path)
    }

    fn holds(&self, name: &str, manifest: &str) {
        fs::write(self.0.join("shop").join(name), manifest).unwrap();
    }

    fn ask(&self, name: &str) -> Result<PodFacts, FactsError> {
        let conf = FactsConf { socket: None, directory: Some(self.0.clone()), ..FactsConf::default() };
        ask(&conf, &pod(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn pod(name: &str) -> PodRef {
    match Caller::parse(&format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name};K8S_POD_UID=u1")).unwrap() {
        Caller::Kubernetes(pod) => pod,
        Caller::SomebodyElse => unreachable!("it names a pod"),
    }
}

fn manifest(metadata: &str) -> String {
    format!(r#"{{"metadata": {{{metadata}}}, "spec": {{"containers": [{{"name": "app"}}]}}}}"#)
}

#[test]
fn a_manifest_in_its_place_is_read() {
    let scratch = Scratch::new("read");
    for (name, metadata) in [
        ("whole", r#""name": "whole", "namespace": "shop", "uid": "u1""#),
        ("bare", ""),
        ("static", r#""uid": "api", "annotations": {"kubernetes.io/config.hash": "u1"}"#),
        ("mirror", r#""uid": "api", "annotations": {"kubernetes.io/config.mirror": "u1"}"#),
        ("a.b", ""),
    ] {
        scratch.holds(&format!("{name}.json"), &manifest(metadata));
        assert_eq!(scratch.ask(name).unwrap().containers.len(), 1, "{name}");
    }
}

#[test]
fn a_pod_nobody_knows_is_told_with_the_place_looked_at() {
    let scratch = Scratch::new("unknown");
    let fault = scratch.ask("cart-0").unwrap_err();
    let nobody = FactsConf { socket: None, ..FactsConf::default() };
    assert!(
        matches!(&fault, FactsError::Unknown(place) if place.ends_with("shop/cart-0.json is not there")),
        "{fault}"
    );
    assert!(matches!(ask(&nobody, &pod("cart-0")), Err(FactsError::NobodyToAsk)));
}

#[test]
fn a_source_that_never_answers_leaves_time_to_the_next() {
    let scratch = Scratch::new("silent");
    scratch.holds("cart-0.json", &manifest(""));
    let socket = scratch.0.join("facts.sock");
    let _silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let deadline = Duration::from_secs(8);
    let directory = Some(scratch.0.clone());
    let conf = FactsConf { socket: Some(socket), directory, deadline, ..FactsConf::default() };
    let begun = Instant::now();
    let facts = ask(&conf, &pod("cart-0")).unwrap();
    assert_eq!(facts.containers.len(), 1);
    let took = begun.elapsed();
    assert!(took >= deadline / 4 && took < deadline * 3 / 4, "half of the time, not {took:?}");
}

/// Kubernetes lets a name be longer than a file's; such a pod may be known elsewhere.
#[test]
fn a_pod_whose_name_no_file_can_have_is_one_nobody_knows() {
    let scratch = Scratch::new("long");
    let longest = "a".repeat(250);
    scratch.holds(&format!("{longest}.json"), &manifest(""));
    assert_eq!(scratch.ask(&longest).unwrap().containers.len(), 1);
    let fault = scratch.ask(&"a".repeat(251)).unwrap_err();
    assert!(matches!(fault, FactsError::Unknown(_)), "{fault}");
}

#[test]
fn f39_facts_of_another_pod_are_not_used() {
    let scratch = Scratch::new("another");
    for (metadata, told) in [
        (r#""uid": "u0""#, "uid"),
        (r#""uid": "u0", "annotations": {"kubernetes.io/config.hash": "u2"}"#, "uid"),
        (r#""name": "cart-1""#, "name"),
        (r#""namespace": "bank""#, "namespace"),
    ] {
        scratch.holds("cart-0.json", &manifest(metadata));
        let fault = scratch.ask("cart-0").unwrap_err();
        assert!(matches!(fault, FactsError::Another { what, .. } if what == told), "{metadata}: {fault}");
    }
}

#[test]
fn what_is_no_manifest_is_refused_and_never_waited_for() {
    let scratch = Scratch::new("bad");
    fs::create_dir(scratch.0.join("shop/directory.json")).unwrap();
    nix::unistd::mkfifo(&scratch.0.join("shop/fifo.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink("/dev/zero", scratch.0.join("shop/zero.json")).unwrap();
    scratch.holds("huge.json", &" ".repeat(4 * 1024 * 1024 + 1));
    scratch.holds("half.json", r#"{"metadata": {"#);
    scratch.holds("empty.json", "");
    for (name, told) in [
        ("directory", "not a regular file"),
        ("fifo", "not a regular file"),
        ("zero", "not a regular file"),
        ("huge", "larger than"),
        ("half", "of no use"),
        ("empty", "of no use"),
    ] {
        let fault = scratch.ask(name).unwrap_err();
        let causes = std::iter::successors(fault.source(), |&cause| cause.source());
        let cause: String = causes.map(|cause| format!(": {cause}")).collect();
        assert!(cause.contains(told) && cause.contains(name), "{name}: {cause}");
    }
}

/// The pod cache of the agent holds facts of one life of a name, and answers only for that one.
#[test]
fn f39_facts_mean_a_pod_only_if_nothing_in_them_contradicts_it() {
    let facts = |uid: &str| PodFacts { uid: uid.to_owned(), ..PodFacts::default() };
    assert!(means(&facts("u1"), &pod("cart-0")));
    assert!(means(&facts(""), &pod("cart-0")), "facts without a uid contradict none");
    assert!(!means(&facts("u0"), &pod("cart-0")));
}

#[test]
fn a_manifest_of_the_largest_size_is_read() {
    let scratch = Scratch::new("largest");
    let text = manifest("");
    scratch.holds("cart-0.json", &format!("{text}{}", " ".repeat(4 * 1024 * 1024 - text.len())));
    assert_eq!(scratch.ask("cart-0").unwrap().containers.len(), 1);
}

#[test]
fn the_hint_for_a_kubeconfig_names_what_is_missing() {
    let fault = |fault| KubeconfigError { path: "/k".into(), fault };
    let program = |errno: nix::errno::Errno| KubeconfigFault::Program {
        program: "/opt/cni/bin/gybe".into(),
        source: errno.into(),
    };
    for (fault, words) in [
        (fault(KubeconfigFault::Read(std::io::ErrorKind::NotFound.into())), "see that the file is there"),
        (fault(program(nix::errno::Errno::ENOENT)), "install gybe beside gybe-cni"),
        (fault(program(nix::errno::Errno::EAGAIN)), "see that the API server answers"),
        (fault(KubeconfigFault::Failed("no route".to_owned())), "see that the API server answers"),
    ] {
        assert!(fault.hint().unwrap().starts_with(words), "{fault:?}");
    }
}
