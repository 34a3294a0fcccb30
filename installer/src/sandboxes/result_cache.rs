//! The sandboxes in libcni's result cache, which has one file for each network of each sandbox
//! (`cachedInfo` of libcni/api.go); and a sandbox's id as an operator names it.

use super::{ConfOfAdd, EndedAdd, Network, Sandbox};
use crate::host::image::PLUGIN;
use crate::host::observe::result_cache::{CacheRead, each_result};
use crate::pod::cgroups::Cgroups;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use gybe_plugin::args::{Namespace, PodName, PodRef};
use gybe_plugin::conf::PluginConf;
use gybe_plugin::network_conf::POD_ANNOTATIONS;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::SystemTime;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct CachedInfo {
    container_id: String,
    /// Since libcni 1.3; before, the result's interfaces name it.
    netns: String,
    if_name: String,
    cni_args: Vec<(String, String)>,
    capability_args: Map<String, Value>,
    result: Value,
    /// The conflist, in base64.
    config: String,
}

#[derive(Deserialize)]
struct Conflist {
    plugins: Vec<Map<String, Value>>,
}

/// The sandboxes of the cache, each once for each of its networks.
pub(super) struct CachedSandboxes {
    pub(super) sandboxes: Vec<Sandbox>,
    pub(super) is_whole: bool,
}

/// Reads the cache; a missing directory contains no sandbox.
pub(super) fn read(results: &Path) -> CachedSandboxes {
    let mut sandboxes = Vec::new();
    let read = each_result(results, &mut |bytes, written| sandboxes.extend(sandbox(bytes, written)));
    CachedSandboxes { sandboxes, is_whole: read != CacheRead::InPart }
}

/// Parses a file; none for a file of another form, or one that a crash truncated.
fn sandbox(bytes: &[u8], written: Option<SystemTime>) -> Option<Sandbox> {
    let info: CachedInfo = serde_json::from_slice(bytes).ok()?;
    let netns = netns(&info)?;
    let argument =
        |key: &str| info.cni_args.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value);
    let pod = || {
        Some(PodRef {
            namespace: Namespace::parse(argument("K8S_POD_NAMESPACE")?).ok()?,
            name: PodName::parse(argument("K8S_POD_NAME")?).ok()?,
            uid: argument("K8S_POD_UID").filter(|uid| !uid.is_empty()).cloned(),
        })
    };
    Some(Sandbox {
        pod: pod(),
        uid: None,
        container: Some(info.container_id.clone()).filter(|id| !id.is_empty()),
        network: Network::Own(netns),
        annotations: match info.capability_args.get(POD_ANNOTATIONS) {
            Some(Value::Object(passed)) => Some(passed.clone()),
            Some(Value::Null) => Some(Map::new()),
            _ => None,
        },
        cgroups: Cgroups::default(),
        processes: Vec::new(),
        ended_add: ended_add(&info, written),
    })
}

/// Versions 0.3 to 1.1 of the CNI specification have the addresses in `ips`; older ones had `ip4` and `ip6`.
fn ended_add(info: &CachedInfo, at: Option<SystemTime>) -> Option<EndedAdd> {
    let ips = info.result.get("ips").and_then(Value::as_array).into_iter().flatten();
    let old = ["ip4", "ip6"].into_iter().filter_map(|key| info.result.get(key)?.get("ip"));
    let texts = ips.filter_map(|ip| ip.get("address")).chain(old).filter_map(Value::as_str);
    let addresses = texts.filter_map(|text| text.split('/').next()?.parse().ok()).collect();
    let confs = vec![conf(&info.config).unwrap_or(ConfOfAdd::NotKnown)];
    (!matches!(info.if_name.as_str(), "" | "lo")).then_some(EndedAdd { addresses, confs, at })
}

/// Parses the conflist of an ADD; none if it, or its entry of the plugin, cannot be parsed.
fn conf(config: &str) -> Option<ConfOfAdd> {
    let conflist: Conflist = serde_json::from_slice(&BASE64_STANDARD.decode(config).ok()?).ok()?;
    let entry = conflist.plugins.iter().find(|plugin| plugin.get("type").is_some_and(|it| it == PLUGIN));
    let Some(entry) = entry else { return Some(ConfOfAdd::NoEntry) };
    Some(ConfOfAdd::Entry(Box::new(PluginConf::read(entry).ok()?)))
}

fn netns(info: &CachedInfo) -> Option<PathBuf> {
    let interfaces = info.result.get("interfaces").and_then(Value::as_array).into_iter().flatten();
    let of_result = interfaces.filter_map(|interface| interface.get("sandbox")?.as_str());
    let all = Some(info.netns.as_str()).into_iter().chain(of_result);
    all.filter(|path| path.starts_with('/')).map(PathBuf::from).next()
}

/// The length of the ids that runtimes generate.
const LENGTH: usize = 64;

/// The id of a sandbox or container, or its beginning: `crictl ps` prints 13 digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerId(String);

/// Why a text is no id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an id has at most {LENGTH} hexadecimal digits")]
pub struct NoContainerId;

impl FromStr for ContainerId {
    type Err = NoContainerId;

    /// Parses an id as crictl prints it, or with the runtime's name before it, as in a pod's status:
    /// `containerd://75c7…`.
    fn from_str(text: &str) -> Result<Self, NoContainerId> {
        let id = text.split_once("://").map_or(text, |(_, id)| id);
        let is_id = (1..=LENGTH).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then(|| Self(id.to_ascii_lowercase())).ok_or(NoContainerId)
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl ContainerId {
    /// Reports whether this is the beginning of `id`.
    pub(super) fn is_id(&self, id: &str) -> bool {
        id.starts_with(&self.0)
    }

    /// Reports whether a `/proc/PID/cgroup` names the container: runtimes write `…/<id>` (cgroupfs) and
    /// `…/cri-containerd-<id>.scope` (systemd).
    pub(super) fn is_in(&self, cgroup: &str) -> bool {
        let names = cgroup.lines().flat_map(|line| line.split('/'));
        let ids = names.map(|name| name.strip_suffix(".scope").unwrap_or(name));
        let ids = ids.map(|name| name.rsplit_once('-').map_or(name, |(_, id)| id));
        ids.filter(|id| id.len() == LENGTH).any(|id| self.is_id(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cached(more: &Value) -> Value {
        let mut info = json!({
            "kind": "cniCacheV1",
            "containerId": "c0ffee",
            "cniArgs": [
                ["IgnoreUnknown", "1"], ["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", "cart-0"], ["K8S_POD_UID", "u1"],
            ],
        });
        info.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        info
    }

    fn read(info: &Value) -> Option<Sandbox> {
        sandbox(info.to_string().as_bytes(), None)
    }

    #[test]
    fn the_namespace_comes_from_newer_libcni_or_from_the_result() {
        let result =
            json!({ "interfaces": [{ "name": "veth0" }, { "name": "eth0", "sandbox": "/var/run/netns/b" }] });
        for (more, netns) in [
            (json!({ "netns": "/run/netns/a", "result": result }), "/run/netns/a"),
            (json!({ "result": result }), "/var/run/netns/b"),
        ] {
            let found = read(&cached(&more)).unwrap();
            assert_eq!(
                (found.to_string().as_str(), found.container.as_deref()),
                ("shop/cart-0", Some("c0ffee"))
            );
            assert_eq!(found.pod.unwrap().uid.as_deref(), Some("u1"));
            assert_eq!(found.network, Network::Own(netns.into()));
            assert_eq!(found.annotations, None);
        }
    }

    #[test]
    fn an_add_has_ended_when_its_result_is_cached_and_the_loopback_interfaces_does_not_count() {
        let added = |more: Value| {
            let netns = json!({ "netns": "/run/netns/a" });
            let mut more = more;
            more.as_object_mut().unwrap().extend(netns.as_object().unwrap().clone());
            read(&cached(&more)).unwrap().ended_add.map(|ended| ended.addresses)
        };
        let both = vec!["10.244.0.9".parse().unwrap(), "fd00::9".parse().unwrap()];
        let current = json!({ "ips": [{ "address": "10.244.0.9/24" }, { "address": "fd00::9/64" }, { "address": "x" }] });
        let old = json!({ "ip4": { "ip": "10.244.0.9/24" }, "ip6": { "ip": "fd00::9/64" } });
        for (more, ended) in [
            (json!({ "ifName": "eth0", "result": current }), Some(both.clone())),
            (json!({ "ifName": "eth0", "result": old }), Some(both)),
            (json!({ "ifName": "eth0", "result": {} }), Some(vec![])),
            (json!({ "ifName": "lo", "result": current }), None),
            (json!({ "result": current }), None),
        ] {
            assert_eq!(added(more.clone()), ended, "{more}");
        }
    }

    #[test]
    fn the_plugins_configuration_in_the_add_is_that_of_the_cached_conflist() {
        let conf = |config: &str| {
            let more = json!({ "netns": "/run/netns/a", "ifName": "eth0", "config": config });
            read(&cached(&more)).unwrap().ended_add.unwrap().confs
        };
        let encoded = |list: Value| BASE64_STANDARD.encode(list.to_string());
        let exclude_namespaces = ["shop".to_owned()].into();
        let expected = PluginConf { exclude_namespaces, ..PluginConf::default() };
        let entry = json!({ "type": "gybe-cni", "exclude_namespaces": ["shop"] });
        for (config, expected) in [
            (
                encoded(json!({ "plugins": [{ "type": "bridge" }, entry] })),
                ConfOfAdd::Entry(Box::new(expected)),
            ),
            (encoded(json!({ "plugins": [{ "type": "bridge" }] })), ConfOfAdd::NoEntry),
            (encoded(json!({ "plugins": [{ "type": "gybe-cni", "gates": "x" }] })), ConfOfAdd::NotKnown),
            (encoded(json!({ "type": "gybe-cni" })), ConfOfAdd::NotKnown),
            (String::new(), ConfOfAdd::NotKnown),
            ("?".to_owned(), ConfOfAdd::NotKnown),
        ] {
            assert_eq!(conf(&config), [expected], "{config}");
        }
    }

    #[test]
    fn passed_annotations_are_kept_and_an_empty_list_differs_from_none() {
        let passed = |annotations: Value| {
            let more = json!({ "netns": "/run/netns/a", "capabilityArgs": { POD_ANNOTATIONS: annotations } });
            read(&cached(&more)).unwrap().annotations
        };
        assert_eq!(passed(json!({ "a": "b" })).unwrap().len(), 1);
        assert_eq!(passed(Value::Null), Some(Map::new()));
        assert_eq!(passed(json!({})), Some(Map::new()));
        assert_eq!(passed(json!("x")), None);
    }

    #[test]
    fn a_file_that_is_no_sandbox_is_ignored_and_a_hostile_name_is_rejected() {
        for bytes in
            ["", "{", "[]", "{\"netns\":5}", "{\"netns\":\"relative\"}", "{\"result\":{\"interfaces\":{}}}"]
        {
            assert_eq!(sandbox(bytes.as_bytes(), None), None, "{bytes}");
        }
        let hostile = json!({ "netns": "/run/netns/a", "cniArgs": [["K8S_POD_NAMESPACE", "../x"], ["K8S_POD_NAME", "y"]] });
        assert_eq!(read(&hostile).unwrap().pod, None);
    }

    #[test]
    fn an_id_is_recognized_in_the_cgroups_of_both_drivers() {
        let whole = "75c7fe7ad0df".repeat(6)[..LENGTH].to_owned();
        let parse = |text: &str| text.parse::<ContainerId>();
        let beginning = parse("75c7fe7ad0df7").unwrap();
        for cgroup in [
            format!("0::/kubepods/besteffort/pod863b91d4-4b68-4efa-917f-4b560e3e86aa/{whole}"),
            format!("0::/kubepods.slice/kubepods-pod863b.slice/cri-containerd-{whole}.scope"),
            format!("12:pids:/kubepods/podx/{whole}\n0::/x\n"),
            format!("0::/kubepods.slice/kubepods-pod863b.slice/crio-{whole}.scope/inner"),
        ] {
            assert!(beginning.is_in(&cgroup), "{cgroup}");
            assert!(parse(&format!("containerd://{whole}")).unwrap().is_in(&cgroup), "{cgroup}");
            assert!(!parse("75c8").unwrap().is_in(&cgroup), "{cgroup}");
        }
        // The end of a pod's uid is no id.
        assert!(
            !parse("4b560e3e86aa").unwrap().is_in("0::/kubepods/pod863b91d4-4b68-4efa-917f-4b560e3e86aa")
        );
        for text in ["", "containerd://", "x", "75c7/..", &"a".repeat(65)] {
            assert_eq!(parse(text), Err(NoContainerId), "{text}");
        }
    }
}
