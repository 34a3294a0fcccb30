//! Manifests as Istio's injector writes them: the policy from a pod's annotations equals the policy from the
//! arguments of its init container, except where istio-cni itself differs from it, and `gybe explain` prints the
//! policy that the plugin decides.

use Difference::{
    GroupFromContainer, ModeFromAnnotationOnly, Outbound15020, RootCountsAs1337, StatusNotOnPods, StatusPort,
};
use gybe_installer::pod::init_args::InitArgs;
use gybe_installer::pod::manifest::{PodTemplate, pods};
use gybe_installer::pod::policy_file::{Families, PolicyFile};
use gybe_netfilter::model::policy::{Inbound, Mode, Owners, PortRange, PortSet, RedirectPolicy};
use gybe_plugin::conf::PluginConf;
use gybe_plugin::decide::{Decision, decide};
use gybe_plugin::gates::InitContainer;
use gybe_plugin::pod::PodFacts;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The number of manifests.
const MANIFESTS: usize = 89;

pub(crate) fn manifests() -> Vec<PathBuf> {
    let directory = crate::reference("injected");
    let entries = std::fs::read_dir(&directory).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "injected"));
    files.sort();
    assert_eq!(files.len(), MANIFESTS, "manifests in {}", directory.display());
    files
}

pub(crate) fn short(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn every_manifest_is_rendered_or_refused_with_one_line() {
    let mut without_rules = Vec::new();
    for path in manifests() {
        #[allow(clippy::disallowed_methods, reason = "the program under test")]
        let mut gybe = Command::new(env!("CARGO_BIN_EXE_gybe"));
        let run = gybe.args(["render", "--ignore-init", "--pod"]).arg(&path).output().unwrap();
        let (out, err) = (String::from_utf8(run.stdout).unwrap(), String::from_utf8(run.stderr).unwrap());
        let name = short(&path);
        if out.contains("table inet gybe {") {
            assert!(run.status.success() && err.is_empty(), "{name}: {err}");
            continue;
        }
        let err: String = err.lines().filter(|line| !line.starts_with("hint: ")).collect();
        let output = format!("{out}{err}");
        assert_eq!(output.lines().count(), 1, "{name}: {output}");
        let why = ["is left alone: ", "has no pod and no pod template, only Service"];
        assert!(why.iter().any(|why| output.contains(why)), "{name}: {output}");
        without_rules.push(name.split('.').next().unwrap().to_owned());
    }
    let expected = [
        "cronjob",
        "cronjob-old-version",
        "custom-template",
        "gateway",
        "grpc-agent",
        "grpc-simple",
        "hello-host-network",
        "hello-host-network-with-ns",
        "hello-service",
        "init-no-intercept-no-native-sidecar",
    ];
    without_rules.sort();
    assert_eq!(without_rules, expected);
}

/// A difference between istio-cni and the init container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Difference {
    /// docs/ISTIO.md, sections 2.8 and 4: without an annotation, port 15020 is
    /// left alone on the way out too.
    Outbound15020,
    /// docs/ISTIO.md, section 4: `status.sidecar.istio.io/port` is never read, and the excluded
    /// inbound ports always get 15020, 15021 and 15090; the injector gives the init container the
    /// status port in place of 15020.
    StatusPort,
    /// The mode is the annotation's, not `ISTIO_META_INTERCEPTION_MODE`'s.
    ModeFromAnnotationOnly,
    /// The group is the container's `runAsGroup`; the init container takes the user for it.
    GroupFromContainer,
    /// A container that runs as root, as the injector makes it for TPROXY, counts as 1337.
    RootCountsAs1337,
    /// The injector puts `sidecar.istio.io/status` of a CronJob where its pods do not get it.
    StatusNotOnPods,
}

/// The manifests whose differences are not just [`Outbound15020`].
const DIFFERENCES: [(&str, &[Difference]); 11] = [
    ("cronjob-old-version.yaml.injected", &[StatusNotOnPods]),
    ("cronjob.yaml.injected", &[StatusNotOnPods]),
    ("hello-tproxy.yaml.injected", &[Outbound15020, ModeFromAnnotationOnly]),
    ("kubevirtInterfaces.yaml.injected", &[Outbound15020, StatusPort]),
    ("proxy-override-runas.yaml.cni.injected", &[Outbound15020, GroupFromContainer]),
    (
        "proxy-override-runas.yaml.tproxy.injected",
        &[Outbound15020, ModeFromAnnotationOnly, GroupFromContainer, RootCountsAs1337],
    ),
    ("reroute-virtual-interfaces.yaml.injected", &[Outbound15020, StatusPort]),
    ("status_annotations.yaml.injected", &[Outbound15020, StatusPort]),
    ("status_annotations_zeroport.yaml.injected", &[Outbound15020, StatusPort]),
    ("status_params.yaml.injected", &[Outbound15020, StatusPort]),
    ("traffic-annotations.yaml.injected", &[]),
];

#[test]
fn annotations_give_the_policy_of_the_init_containers_arguments() {
    let mut compared = 0;
    for path in manifests() {
        let text = std::fs::read_to_string(&path).unwrap();
        let Ok(pods) = pods(&text) else { continue };
        let name = short(&path);
        let known = DIFFERENCES.iter().find(|(file, _)| *file == name).map(|(_, difference)| *difference);
        let known: BTreeSet<Difference> = known.unwrap_or(&[Outbound15020]).iter().copied().collect();
        for pod in &pods {
            let Some(init) = of_init_container(pod) else { continue };
            let (expected, used) = with_known_differences(init, &pod.pod, &known);
            assert_eq!(used, known, "{name} {}: listed differences that change nothing", pod.origin);
            assert_eq!(of_annotations(pod), expected, "{name} {}", pod.origin);
            compared += 1;
        }
    }
    assert_eq!(compared, 82, "pods with an init container");
}

fn of_annotations(pod: &PodTemplate) -> Option<RedirectPolicy> {
    let facts = PodFacts::from_manifest(&pod.pod).unwrap();
    let address: IpAddr = "192.0.2.1".parse().unwrap();
    match decide(&PluginConf::default(), &facts, &[address], InitContainer::Ignored) {
        Decision::Redirect(policy) => Some(policy),
        Decision::LeaveAlone(_) => None,
        Decision::Refuse(cause) => panic!("{}: {cause}", pod.origin),
        Decision::Ambient(_) => panic!("ambient, with ambient mode off"),
    }
}

fn of_init_container(pod: &PodTemplate) -> Option<RedirectPolicy> {
    let containers = pod.pod.pointer("/spec/initContainers")?.as_array()?;
    let init = containers.iter().find(|c| c["name"] == "istio-init" || c["name"] == "istio-validation")?;
    let texts = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().map(|item| item.as_str().unwrap().to_owned()).collect()
    };
    let env = init["env"].as_array().into_iter().flatten();
    let env: BTreeMap<String, String> = env
        .filter_map(|entry| Some((entry["name"].as_str()?.to_owned(), entry["value"].as_str()?.to_owned())))
        .collect();
    let args = InitArgs::read(&texts(&init["args"]), &env).unwrap();
    Some(args.policy(&[]).unwrap().with_families(Families::V4Only))
}

/// The init container's policy with the known differences made, and those that changed something.
fn with_known_differences(
    init: RedirectPolicy,
    pod: &Value,
    known: &BTreeSet<Difference>,
) -> (Option<RedirectPolicy>, BTreeSet<Difference>) {
    let mut used = BTreeSet::new();
    let mut policy = init;
    for difference in known {
        let Some(changed) = changed(&policy, pod, *difference) else {
            return (None, [*difference].into());
        };
        if changed != policy {
            used.insert(*difference);
        }
        policy = changed;
    }
    (Some(policy), used)
}

fn changed(policy: &RedirectPolicy, pod: &Value, difference: Difference) -> Option<RedirectPolicy> {
    let mut policy = policy.clone();
    match difference {
        Outbound15020 => {
            policy.outbound.excluded_ports = with(&policy.outbound.excluded_ports, &[15020]);
        }
        StatusPort => {
            let Inbound::AllBut(excluded) = &policy.inbound else { panic!("status port without *") };
            // Every port but 15021 and 15090 is the status port: these pods exclude nothing else.
            let own: PortSet = [15090, 15021].into_iter().collect();
            assert!(excluded.ranges().len() <= 3, "{excluded:?}");
            policy.inbound = Inbound::AllBut(with(&own, &[15020]));
        }
        ModeFromAnnotationOnly => policy.mode = Mode::Redirect,
        GroupFromContainer => {
            let group = proxy(pod)["securityContext"]["runAsGroup"].as_u64().unwrap();
            policy.proxy_gids = Owners::new(u32::try_from(group).unwrap(), []);
        }
        RootCountsAs1337 => {
            assert_eq!(proxy(pod)["securityContext"]["runAsUser"], 0);
            policy.proxy_uids = Owners::new(1337, []);
        }
        StatusNotOnPods => {
            assert!(pod.pointer("/metadata/annotations").is_none());
            return None;
        }
    }
    Some(policy)
}

fn with(ports: &PortSet, more: &[u16]) -> PortSet {
    let more = more.iter().filter_map(|port| PortRange::new(*port, *port));
    ports.ranges().iter().copied().chain(more).collect()
}

fn proxy(pod: &Value) -> &Value {
    let all = ["/spec/containers", "/spec/initContainers"].into_iter().filter_map(|list| pod.pointer(list));
    let mut all = all.filter_map(Value::as_array).flatten();
    all.find(|container| container["name"] == "istio-proxy").unwrap()
}

fn explain(manifest: &Path, flags: &[&str]) -> Output {
    #[allow(clippy::disallowed_methods, reason = "the program under test")]
    let mut gybe = Command::new(env!("CARGO_BIN_EXE_gybe"));
    gybe.arg("explain").args(flags).arg("--pod").arg(manifest).output().unwrap()
}

/// The addresses that `gybe explain` assumes without a namespace.
fn assumed() -> [IpAddr; 2] {
    ["192.0.2.1", "2001:db8::1"].map(|address| address.parse().unwrap())
}

#[test]
fn the_printed_policy_is_the_one_that_the_plugin_decides() {
    let mut redirected = 0;
    for path in manifests() {
        let Ok(pods) = pods(&std::fs::read_to_string(&path).unwrap()) else { continue };
        let name = short(&path);
        let out = explain(&path, &["--ignore-init", "--json"]);
        assert_eq!(out.status.code(), Some(0), "{name}: {out:?}");
        let explained: Vec<Value> = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(explained.len(), pods.len(), "{name}");
        for (pod, explained) in pods.iter().zip(&explained) {
            let facts = PodFacts::from_manifest(&pod.pod).unwrap();
            match decide(&PluginConf::default(), &facts, &assumed(), InitContainer::Ignored) {
                Decision::Redirect(policy) => {
                    let printed = PolicyFile::from_entries(explained["policy"].as_object().unwrap()).unwrap();
                    assert_eq!(printed.policy(&[]).unwrap(), policy, "{name} {}", pod.origin);
                    redirected += 1;
                }
                Decision::LeaveAlone(reason) => {
                    assert_eq!(explained["decision"], "leave-alone", "{name}");
                    assert_eq!(explained["reason"], reason.to_string(), "{name}");
                }
                Decision::Refuse(cause) => panic!("{name}: {cause}"),
                Decision::Ambient(_) => panic!("{name}: ambient, with ambient mode off"),
            }
        }
    }
    assert_eq!(redirected, REDIRECTED, "pods that are redirected");
}

/// The pods of all manifests that are redirected if they have no init container.
const REDIRECTED: usize = 80;

/// The explanations of all manifests; manifests with the same text stand above it together.
fn explanations() -> String {
    let mut manifests_by_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in manifests() {
        for (flags, suffix) in [(&[][..], ""), (&["--ignore-init"][..], ", init container ignored")] {
            let out = explain(&path, flags);
            let text = [out.stderr, out.stdout].concat();
            let mut text = String::from_utf8(text).unwrap().replace(&path.display().to_string(), "FILE");
            for pod in pods(&std::fs::read_to_string(&path).unwrap()).unwrap_or_default() {
                text = text.replace(&format!("{}: ", pod.origin), "POD: ");
            }
            manifests_by_text.entry(text).or_default().push(format!("{}{suffix}", short(&path)));
        }
    }
    let block = |(text, names): (&String, &Vec<String>)| {
        let names: String = names.iter().map(|name| format!("# {name}\n")).collect();
        format!("{names}{text}\n")
    };
    let mut blocks: Vec<String> = manifests_by_text.iter().map(block).collect();
    blocks.sort();
    blocks.concat()
}

/// For review in a diff: the other test and `explanations.rs` check the content.
#[test]
fn the_explanations_are_those_in_the_repository() {
    let found = explanations();
    let expected = include_str!("explanations.txt");
    let new = Path::new(env!("CARGO_TARGET_TMPDIR")).join("explanations.txt");
    if found != expected {
        std::fs::write(&new, &found).unwrap();
    }
    let first = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "{first:?}; if the new text is right: cp {} installer/tests/shared/explanations.txt",
        new.display()
    );
}
