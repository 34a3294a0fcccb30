//! Invalid input is refused, and the pod's network namespace does not change: an empty one, and one that an
//! earlier ADD has redirected. The same ADD without its fault is the control.

use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::programs::{Run, path_of_ours, run};
use gybe_test_support::TestDir;
use serde_json::{Map, Value, json};
use std::fs;

/// The commands whose output is compared: rules of every tool, links with their addresses, routing rules, routes.
const EVERYTHING: &str = "nft -a list ruleset; iptables-legacy-save; ip6tables-legacy-save; ip address; \
                          ip rule; ip -6 rule; ip route show table all; ip -6 route show table all";

/// An ADD: the runtime's variables and stdin, and the pod's manifest in the directory of manifests.
struct Add {
    env: Map<String, Value>,
    stdin: String,
    manifest: Option<Value>,
}

/// A pod's network namespace, and a directory of manifests.
struct TestPod {
    netns: Namespace,
    manifests: TestDir,
}

impl TestPod {
    fn new(test: &str, addresses: &[&str]) -> Self {
        let manifests = TestDir::new(&format!("bad-input-{test}"));
        let pod = Self { netns: Namespace::new().unwrap(), manifests };
        for address in addresses {
            pod.run("ip", &["address", "add", address, "dev", "lo", "nodad"]);
        }
        pod
    }

    /// Runs a program in the namespace and returns its output.
    fn run(&self, program: &str, words: &[&str]) -> String {
        let run = self.netns.run(|| run(program, words, "")).unwrap().unwrap();
        assert_eq!(run.code, Some(0), "{program} {words:?}: {run:?}");
        run.out
    }

    /// The namespace's state, without the lines that have packet counters.
    fn state(&self) -> String {
        let state = self.run("sh", &["-euc", EVERYTHING]);
        state.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
    }

    /// Returns the example's ADD for this namespace and directory.
    fn add(&self) -> Add {
        let mut example: Value = serde_json::from_str(include_str!("../../../examples/add.json")).unwrap();
        let mut env = example["env"].as_object().unwrap().clone();
        env.insert("CNI_NETNS".to_owned(), json!(self.netns.path()));
        example["stdin"]["facts"]["directory"] = json!(self.manifests.path());
        let manifest = serde_json::from_str(include_str!("../../../examples/pod.json")).unwrap();
        Add { env, stdin: example["stdin"].to_string(), manifest: Some(manifest) }
    }

    fn make(&self, add: &Add) -> Run {
        let directory = self.manifests.join("shop");
        let _ignored = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        if let Some(manifest) = &add.manifest {
            fs::write(directory.join("cart-0.json"), manifest.to_string()).unwrap();
        }
        let plugin = path_of_ours("gybe-cni").unwrap();
        let set = add.env.iter().map(|(name, value)| format!("{name}={}", value.as_str().unwrap()));
        let words: Vec<String> = ["-i".to_owned()].into_iter().chain(set).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).chain(plugin.to_str()).collect();
        run("env", &words, &add.stdin).unwrap()
    }

    /// Asserts that this ADD fails with a CNI error, and that the namespace does not change.
    fn assert_refused(&self, name: &str, add: &Add) {
        self.assert_unchanged(name, || self.make(add));
    }

    fn assert_unchanged(&self, name: &str, make: impl FnOnce() -> Run) {
        let before = self.state();
        let outcome = make();
        assert_eq!(outcome.code, Some(1), "{name}: {outcome:?}");
        let error: Value = serde_json::from_str(&outcome.out).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(error["code"].as_u64() > Some(0) && error["msg"].is_string(), "{name}: {error}");
        assert_eq!(self.state(), before, "{name}");
    }
}

impl Add {
    fn annotated(mut self, name: &str, value: &str) -> Self {
        let annotations = &mut self.manifest.as_mut().unwrap()["metadata"]["annotations"];
        annotations[format!("traffic.sidecar.istio.io/{name}")] = json!(value);
        self
    }

    fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), json!(value));
        self
    }

    fn without_variable(mut self, name: &str) -> Self {
        assert!(self.env.remove(name).is_some(), "{name}");
        self
    }

    fn with_key(self, key: &str, value: &Value) -> Self {
        let mut stdin: Value = serde_json::from_str(&self.stdin).unwrap();
        stdin[key] = value.clone();
        Self { stdin: stdin.to_string(), ..self }
    }

    /// Makes the proxy listen only on the family of the pod's first address.
    fn single_stack(mut self) -> Self {
        let proxy = &mut self.manifest.as_mut().unwrap()["spec"]["initContainers"][1];
        assert_eq!(proxy["name"], "istio-proxy");
        proxy["env"] = json!([]);
        self
    }
}

fn invalid_adds(pod: &TestPod) -> Vec<(&'static str, Add)> {
    let add = || pod.add();
    let truncate = |add: Add| Add { stdin: add.stdin[..add.stdin.len() / 2].to_owned(), ..add };
    vec![
        ("malformed JSON", truncate(add())),
        ("empty stdin", Add { stdin: String::new(), ..add() }),
        ("no container id", add().without_variable("CNI_CONTAINERID")),
        ("no interface", add().without_variable("CNI_IFNAME")),
        ("no CNI_NETNS", add().without_variable("CNI_NETNS")),
        ("a namespace that does not exist", add().with_variable("CNI_NETNS", "/nonexistent")),
        ("a file as namespace", add().with_variable("CNI_NETNS", "/etc/passwd")),
        ("a mount namespace", add().with_variable("CNI_NETNS", "/proc/self/ns/mnt")),
        ("arguments that are not pairs", add().with_variable("CNI_ARGS", "K8S_POD_NAMESPACE")),
        ("port 70000", add().annotated("excludeInboundPorts", "70000")),
        ("a port with a line feed", add().annotated("excludeInboundPorts", "80\n,81")),
        ("an interface with options", add().annotated("excludeInterfaces", "eth0 -j ACCEPT")),
        ("a CIDR without a prefix", add().annotated("includeOutboundIPRanges", "10.0.0.0")),
        ("no manifest", Add { manifest: None, ..add() }),
        ("an unknown backend", add().with_key("backend", &json!("nftt"))),
        ("IPv6 that bypasses the proxy", add().single_stack().with_key("ipv6", &json!("reject"))),
    ]
}

#[test]
fn invalid_input_changes_neither_an_empty_nor_a_redirected_namespace() {
    let pod = TestPod::new("both", &["10.244.0.10/32", "fd00:10::10/128"]);
    let empty = pod.state();
    invalid_adds(&pod).iter().for_each(|(name, add)| pod.assert_refused(name, add));
    let good = pod.make(&pod.add());
    assert_eq!(good.code, Some(0), "the control: {good:?}");
    let redirected = pod.state();
    assert_ne!(redirected, empty);
    assert!(redirected.contains("table inet gybe") && redirected.contains("::6/128"), "{redirected}");
    invalid_adds(&pod).iter().for_each(|(name, add)| pod.assert_refused(name, add));
    assert_eq!(pod.state(), redirected);
}

#[test]
fn a_pod_without_an_address_is_refused_and_unchanged() {
    let pod = TestPod::new("no-address", &[]);
    pod.assert_refused("no address", &pod.add());
    pod.run("ip", &["address", "add", "10.244.0.10/32", "dev", "lo"]);
    assert_eq!(pod.make(&pod.add()).code, Some(0), "the control");
}

/// On a node the plugin's own namespace is the host's. Here the plugin runs in the pod's, so that a missing refusal
/// changes the pod's namespace.
#[test]
fn the_plugins_own_namespace_is_refused_and_unchanged() {
    let pod = TestPod::new("own", &["10.244.0.10/32", "fd00:10::10/128"]);
    let add = pod.add().with_variable("CNI_NETNS", "/proc/self/ns/net");
    pod.assert_unchanged("its own namespace", || pod.netns.run(|| pod.make(&add)).unwrap());
    pod.assert_unchanged("its own namespace by another path", || {
        pod.netns.run(|| pod.make(&pod.add())).unwrap()
    });
}
