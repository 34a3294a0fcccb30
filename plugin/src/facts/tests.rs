//! Sources of facts: directories of manifests, and the order and time of several sources.

use super::agent::{AgentFault, exchange};
use super::*;
use crate::pod::Ambient;
use gybe_test_support::TestDir;
use std::error::Error;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A directory of manifests, removed at the end of the test.
struct ManifestDirectory(TestDir);

impl ManifestDirectory {
    fn new(test: &str) -> Self {
        Self(TestDir::new(&format!("facts-{test}")).with_subdirectories(&["shop"]))
    }

    fn add(&self, name: &str, manifest: &str) {
        self.0.write(format!("shop/{name}"), manifest);
    }

    fn look_up(&self, name: &str) -> Result<PodFacts, FactsError> {
        let conf = FactsConf { socket: None, directory: Some(self.0.to_owned()), ..FactsConf::default() };
        look_up(&conf, &pod(name), false)
    }
}

fn pod(name: &str) -> PodRef {
    let args = format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name};K8S_POD_UID=u1");
    PodRef::from_args(&args).unwrap().unwrap()
}

fn manifest(metadata: &str) -> String {
    format!(r#"{{"metadata": {{{metadata}}}, "spec": {{"containers": [{{"name": "app"}}]}}}}"#)
}

#[test]
fn a_manifest_at_its_path_is_read() {
    let manifests = ManifestDirectory::new("read");
    for (name, metadata) in [
        ("whole", r#""name": "whole", "namespace": "shop", "uid": "u1""#),
        ("bare", ""),
        ("static", r#""uid": "api", "annotations": {"kubernetes.io/config.hash": "u1"}"#),
        ("mirror", r#""uid": "api", "annotations": {"kubernetes.io/config.mirror": "u1"}"#),
        ("a.b", ""),
    ] {
        manifests.add(&format!("{name}.json"), &manifest(metadata));
        assert_eq!(manifests.look_up(name).unwrap().containers.len(), 1, "{name}");
    }
}

#[test]
fn an_unknown_pod_is_an_error_with_the_path_of_its_manifest() {
    let manifests = ManifestDirectory::new("unknown");
    let error = manifests.look_up("cart-0").unwrap_err();
    let no_source = FactsConf { socket: None, ..FactsConf::default() };
    assert!(
        matches!(&error, FactsError::Unknown(text) if text.ends_with("shop/cart-0.json does not exist")),
        "{error}"
    );
    assert!(matches!(look_up(&no_source, &pod("cart-0"), false), Err(FactsError::NoSource)));
}

#[test]
fn a_source_that_never_answers_leaves_time_for_the_next() {
    let manifests = ManifestDirectory::new("silent");
    manifests.add("cart-0.json", &manifest(""));
    let socket = manifests.0.join("facts.sock");
    let _silent = UnixListener::bind(&socket).unwrap();
    let deadline = Duration::from_secs(8);
    let directory = Some(manifests.0.to_owned());
    let conf = FactsConf { socket: Some(socket), directory, deadline, ..FactsConf::default() };
    let started = Instant::now();
    let facts = look_up(&conf, &pod("cart-0"), false).unwrap();
    assert_eq!(facts.containers.len(), 1);
    let took = started.elapsed();
    assert!(took >= deadline / 4 && took < deadline * 3 / 4, "half of the time, not {took:?}");
}

/// A pod's name may be longer than a file name; another source may know such a pod.
#[test]
fn a_pod_whose_name_is_too_long_for_a_file_is_unknown() {
    let manifests = ManifestDirectory::new("long");
    let longest = "a".repeat(250);
    manifests.add(&format!("{longest}.json"), &manifest(""));
    assert_eq!(manifests.look_up(&longest).unwrap().containers.len(), 1);
    let error = manifests.look_up(&"a".repeat(251)).unwrap_err();
    assert!(matches!(error, FactsError::Unknown(_)), "{error}");
}

#[test]
fn f39_facts_of_another_pod_are_not_used() {
    let manifests = ManifestDirectory::new("another");
    for (metadata, part) in [
        (r#""uid": "u0""#, "uid"),
        (r#""uid": "u0", "annotations": {"kubernetes.io/config.hash": "u2"}"#, "uid"),
        (r#""name": "cart-1""#, "name"),
        (r#""namespace": "bank""#, "namespace"),
    ] {
        manifests.add("cart-0.json", &manifest(metadata));
        let error = manifests.look_up("cart-0").unwrap_err();
        assert!(matches!(error, FactsError::OtherPod { what, .. } if what == part), "{metadata}: {error}");
    }
}

#[test]
fn files_that_are_not_manifests_are_refused_without_waiting() {
    let manifests = ManifestDirectory::new("bad");
    fs::create_dir(manifests.0.join("shop/directory.json")).unwrap();
    nix::unistd::mkfifo(&manifests.0.join("shop/fifo.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink("/dev/zero", manifests.0.join("shop/zero.json")).unwrap();
    manifests.add("huge.json", &" ".repeat(4 * 1024 * 1024 + 1));
    manifests.add("half.json", r#"{"metadata": {"#);
    manifests.add("empty.json", "");
    for (name, words) in [
        ("directory", "not a regular file"),
        ("fifo", "not a regular file"),
        ("zero", "not a regular file"),
        ("huge", "larger than"),
        ("half", "is invalid"),
        ("empty", "is invalid"),
    ] {
        let error = manifests.look_up(name).unwrap_err();
        let causes = std::iter::successors(error.source(), |&cause| cause.source());
        let cause: String = causes.map(|cause| format!(": {cause}")).collect();
        assert!(cause.contains(words) && cause.contains(name), "{name}: {cause}");
    }
}

/// The agent's pod cache has the facts of one pod of a name, and must not use them for another.
#[test]
fn f39_facts_match_a_pod_unless_they_contradict_it() {
    let facts = |uid: &str| PodFacts { uid: uid.to_owned(), ..PodFacts::default() };
    assert!(matches(&facts("u1"), &pod("cart-0")));
    assert!(matches(&facts(""), &pod("cart-0")), "facts without a uid match every uid");
    assert!(!matches(&facts("u0"), &pod("cart-0")));
}

#[test]
fn the_error_about_contradicted_facts_names_the_side_without_a_uid() {
    for (uid, missing) in [("", "the facts have no uid"), ("u0", "CNI_ARGS has no K8S_POD_UID")] {
        let facts = PodFacts { uid: uid.to_owned(), ..PodFacts::default() };
        let text = FactsError::contradicted(LeaveAloneReason::NoProxy, &facts).to_string();
        assert!(text.contains("no container istio-proxy") && text.ends_with(missing), "{text}");
    }
}

#[test]
fn a_manifest_of_the_maximum_size_is_read() {
    let manifests = ManifestDirectory::new("largest");
    let text = manifest("");
    manifests.add("cart-0.json", &format!("{text}{}", " ".repeat(4 * 1024 * 1024 - text.len())));
    assert_eq!(manifests.look_up("cart-0").unwrap().containers.len(), 1);
}

#[test]
fn the_hint_for_a_kubeconfig_names_what_is_missing() {
    let error = |fault| KubeconfigError { path: "/k".into(), fault };
    let program = |errno: nix::errno::Errno| KubeconfigFault::Program {
        program: "/opt/cni/bin/gybe".into(),
        source: errno.into(),
    };
    for (error, words) in [
        (error(KubeconfigFault::Read(std::io::ErrorKind::NotFound.into())), "check that the file exists"),
        (error(program(nix::errno::Errno::ENOENT)), "install gybe in the directory of gybe-cni"),
        (error(program(nix::errno::Errno::EAGAIN)), "check that the API server answers"),
        (error(KubeconfigFault::Failed("no route".to_owned())), "check that the API server answers"),
    ] {
        assert!(error.hint().unwrap().starts_with(words), "{error:?}");
    }
}

#[test]
fn after_the_deadline_no_agent_is_asked() {
    let manifests = ManifestDirectory::new("late");
    let socket = manifests.0.join("facts.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    // `SO_SNDTIMEO` of zero would wait without end.
    let late = exchange(&socket, |_| panic!("a request is sent"), Instant::now());
    assert!(matches!(late, Err(AgentFault::Timeout)), "{late:?}");
}

/// Responds to one request as an agent.
fn answer_one(socket: &Path, response: String) -> JoinHandle<()> {
    let listener = UnixListener::bind(socket).unwrap();
    thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        writeln!(connection, "{response}").unwrap();
        // The plugin closes the connection once it has the answer.
        let _ = connection.read_to_end(&mut Vec::new());
    })
}

/// The socket appears between the attempt to connect and the watch, so that inotify reports nothing.
#[test]
fn f14_a_socket_that_appears_before_the_wait_for_it_begins_is_not_missed() {
    let root = TestDir::new("facts-race");
    let socket = root.join("facts.sock");
    let conf = FactsConf { socket: Some(socket.clone()), ..FactsConf::default() };
    let pod = pod("cart-0");
    let lookup = FactsLookup::start(&conf, &pod, false);
    let answering = answer_one(&socket, format!(r#"{{"version": 1, "pod": {}}}"#, manifest("")));
    assert_eq!(lookup.finish(AbsentAgent::IsAwaited, |_| false).unwrap().containers.len(), 1);
    answering.join().unwrap();
}

#[test]
fn an_agent_is_awaited_although_another_source_has_facts_that_do_not_decide() {
    let manifests = ManifestDirectory::new("open");
    manifests.add("cart-0.json", &manifest(""));
    let socket = manifests.0.join("facts.sock");
    let directory = Some(manifests.0.to_owned());
    let conf = FactsConf { socket: Some(socket.clone()), directory, ..FactsConf::default() };
    let pod = pod("cart-0");
    let is_open = |facts: &PodFacts| facts.ambient == Ambient::Unknown;
    let lookup = || FactsLookup::start(&conf, &pod, true);
    let decisive = lookup().finish(AbsentAgent::IsAwaited, |_| false).unwrap();
    assert_eq!(decisive.ambient, Ambient::Unknown, "facts that decide are used at once");
    let error = lookup().finish(AbsentAgent::Fails, is_open).unwrap_err().to_string();
    assert!(
        error.contains("cannot be reached") && error.contains("is unknown: only the node agent"),
        "{error}"
    );
    let waiting = lookup();
    let response = format!(r#"{{"version": 1, "pod": {}, "ambient": {{"why": "x"}}}}"#, manifest(""));
    let answering = answer_one(&socket, response);
    let found = waiting.finish(AbsentAgent::IsAwaited, is_open).unwrap();
    assert_eq!(found.ambient, Ambient::No { why: "x".to_owned() });
    answering.join().unwrap();
}

#[test]
fn unknown_and_unusable_facts_and_a_missing_source_have_hints() {
    let hint = |error: FactsError| error.hint().map(Cow::into_owned).unwrap_or_default();
    assert!(hint(FactsError::NoSource).starts_with("set facts.socket, facts.kubeconfig or facts.directory"));
    assert!(hint(FactsError::Unknown("not there".into())).starts_with("the kubelet retries"));
    let unusable = AmbientPod::parse("../u", "shop", "cart-0", "default").unwrap_err();
    assert!(hint(unusable.into()).starts_with("the kubelet retries"));
    assert!(hint(FactsError::Ambient).contains("AMBIENT_ENABLED=true"));
    let several = FactsError::Unknown("not there".into()).and(&FactsError::NoSource);
    assert!(several.hint().is_none());
}
