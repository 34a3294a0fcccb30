//! What cannot be meant is refused, and the pod's namespace stays as it was: an untouched one, and one
//! that an ADD has redirected before. The same ADD without its fault is the control.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that meets what it did not expect has nothing better to do"
)]

use gybe_installer::testnet::namespace::Namespace;
use gybe_integration::programs::{Run, path_of_ours, run};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::PathBuf;

/// All that is compared: rules of every tool, links with their addresses, policy rules, routes.
const EVERYTHING: &str = "nft -a list ruleset; iptables-legacy-save; ip6tables-legacy-save; ip address; \
                          ip rule; ip -6 rule; ip route show table all; ip -6 route show table all";

/// One ADD: what the runtime says, and what the directory of manifests holds for its pod.
struct Add {
    env: Map<String, Value>,
    stdin: String,
    manifest: Option<Value>,
}

/// A namespace of its own, and a directory of manifests.
struct Place {
    pod: Namespace,
    manifests: PathBuf,
}

impl Place {
    fn new(test: &str, addresses: &[&str]) -> Self {
        let manifests = std::env::temp_dir().join(format!("gybe-bad-input-{test}-{}", std::process::id()));
        let place = Self { pod: Namespace::new().unwrap(), manifests };
        for address in addresses {
            place.within("ip", &["address", "add", address, "dev", "lo", "nodad"]);
        }
        place
    }

    fn within(&self, program: &str, words: &[&str]) -> String {
        let run = self.pod.run(|| run(program, words, "")).unwrap().unwrap();
        assert_eq!(run.code, Some(0), "{program} {words:?}: {run:?}");
        run.out
    }

    /// Its state, without what counts packets.
    fn state(&self) -> String {
        let state = self.within("sh", &["-euc", EVERYTHING]);
        state.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
    }

    /// The example, for this namespace and these manifests.
    fn add(&self) -> Add {
        let mut example: Value = serde_json::from_str(include_str!("../../../examples/add.json")).unwrap();
        let mut env = example["env"].as_object().unwrap().clone();
        env.insert("CNI_NETNS".to_owned(), json!(self.pod.path()));
        example["stdin"]["facts"]["directory"] = json!(self.manifests);
        let manifest = serde_json::from_str(include_str!("../../../examples/pod.json")).unwrap();
        Add { env, stdin: example["stdin"].to_string(), manifest: Some(manifest) }
    }

    fn make(&self, add: &Add) -> Run {
        let directory = self.manifests.join("shop");
        let _none_before = fs::remove_dir_all(&directory);
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

    /// Asserts that this ADD is answered with an error in CNI's form, and that nothing changes.
    fn refuses(&self, name: &str, add: &Add) {
        self.refused(name, || self.make(add));
    }

    fn refused(&self, name: &str, make: impl FnOnce() -> Run) {
        let before = self.state();
        let answer = make();
        assert_eq!(answer.code, Some(1), "{name}: {answer:?}");
        let error: Value = serde_json::from_str(&answer.out).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(error["code"].as_u64() > Some(0) && error["msg"].is_string(), "{name}: {error}");
        assert_eq!(self.state(), before, "{name}");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.manifests);
    }
}

impl Add {
    fn annotated(mut self, name: &str, value: &str) -> Self {
        let annotations = &mut self.manifest.as_mut().unwrap()["metadata"]["annotations"];
        annotations[format!("traffic.sidecar.istio.io/{name}")] = json!(value);
        self
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), json!(value));
        self
    }

    fn without(mut self, name: &str) -> Self {
        assert!(self.env.remove(name).is_some(), "{name}");
        self
    }

    fn told(self, key: &str, value: &Value) -> Self {
        let mut stdin: Value = serde_json::from_str(&self.stdin).unwrap();
        stdin[key] = value.clone();
        Self { stdin: stdin.to_string(), ..self }
    }

    /// A proxy that listens on the family of the pod's first address alone.
    fn single_stack(mut self) -> Self {
        let proxy = &mut self.manifest.as_mut().unwrap()["spec"]["initContainers"][1];
        assert_eq!(proxy["name"], "istio-proxy");
        proxy["env"] = json!([]);
        self
    }
}

fn bad(place: &Place) -> Vec<(&'static str, Add)> {
    let add = || place.add();
    let cut = |add: Add| Add { stdin: add.stdin[..add.stdin.len() / 2].to_owned(), ..add };
    vec![
        ("malformed JSON", cut(add())),
        ("no JSON at all", Add { stdin: String::new(), ..add() }),
        ("no container id", add().without("CNI_CONTAINERID")),
        ("no interface", add().without("CNI_IFNAME")),
        ("no namespace named", add().without("CNI_NETNS")),
        ("a namespace that is not there", add().with("CNI_NETNS", "/nonexistent")),
        ("a file as namespace", add().with("CNI_NETNS", "/etc/passwd")),
        ("another namespace than a network's", add().with("CNI_NETNS", "/proc/self/ns/mnt")),
        ("arguments that are no pairs", add().with("CNI_ARGS", "K8S_POD_NAMESPACE")),
        ("port 70000", add().annotated("excludeInboundPorts", "70000")),
        ("a port with a line break", add().annotated("excludeInboundPorts", "80\n,81")),
        ("an interface with options", add().annotated("excludeInterfaces", "eth0 -j ACCEPT")),
        ("a CIDR without a prefix", add().annotated("includeOutboundIPRanges", "10.0.0.0")),
        ("a manifest that is not there", Add { manifest: None, ..add() }),
        ("a backend nobody knows", add().told("backend", &json!("nftt"))),
        ("IPv6 past the proxy", add().single_stack().told("ipv6", &json!("reject"))),
    ]
}

#[test]
fn bad_input_leaves_an_untouched_namespace_and_a_redirected_one_as_they_are() {
    let place = Place::new("both", &["10.244.0.10/32", "fd00:10::10/128"]);
    let untouched = place.state();
    bad(&place).iter().for_each(|(name, add)| place.refuses(name, add));
    let good = place.make(&place.add());
    assert_eq!(good.code, Some(0), "the control: {good:?}");
    let redirected = place.state();
    assert_ne!(redirected, untouched);
    assert!(redirected.contains("table inet gybe") && redirected.contains("::6/128"), "{redirected}");
    bad(&place).iter().for_each(|(name, add)| place.refuses(name, add));
    assert_eq!(place.state(), redirected);
}

#[test]
fn a_pod_that_has_no_address_yet_is_left_as_it_is() {
    let place = Place::new("no-address", &[]);
    place.refuses("no address", &place.add());
    place.within("ip", &["address", "add", "10.244.0.10/32", "dev", "lo"]);
    assert_eq!(place.make(&place.add()).code, Some(0), "the control");
}

/// The host's, for the plugin. Here it is the pod's as well, so that a refusal that fails shows there.
#[test]
fn the_namespace_the_plugin_itself_runs_in_is_left_as_it_is() {
    let place = Place::new("own", &["10.244.0.10/32", "fd00:10::10/128"]);
    let add = place.add().with("CNI_NETNS", "/proc/self/ns/net");
    place.refused("its own", || place.pod.run(|| place.make(&add)).unwrap());
    place.refused("its own, by another path", || place.pod.run(|| place.make(&place.add())).unwrap());
}
