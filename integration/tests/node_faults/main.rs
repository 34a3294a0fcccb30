//! Faults planted on a node, alone and in pairs: `gybe doctor` and `gybe verify --all` name each cause and its
//! remedy, some faults hide others, some findings depend on the moment, and nothing is found on a healthy node of
//! any platform.

#![cfg(test)]
#![allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod fixture;
#[path = "../repair/node.rs"]
#[allow(dead_code, reason = "the tests of repairs use the rest")]
mod node;
mod ready;
mod table;

use crate::fixture::{AgentState, Expected, Fault, HealthyNode, with_directory_in_memory};
use crate::table::{FAULTS, NOT_READY, wrong};
use gybe_integration::namespace::in_parallel_at_most;
use gybe_integration::programs::{Run, ours};
use gybe_plugin::version::BUILD_MARK;
use gybe_test_support::{TestDir, is_exhaustive};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Most of a case is waiting for programs.
const THREADS: usize = 4;

/// Plants the faults on a new node, and returns what the commands do not report, and findings that none of the faults
/// explains.
fn misses(agent: AgentState, faults: &[&Fault]) -> Vec<String> {
    with_directory_in_memory(|directory| {
        let mut node = HealthyNode::new(directory, agent);
        for fault in faults {
            (fault.plant)(&mut node);
        }
        let (doctor, verify) = (node.doctor(), node.verify());
        let instead = |fault: &Fault| HIDDEN.iter().find(|it| it.applies(fault, faults)).map(|it| it.instead);
        let mut misses: Vec<String> =
            faults.iter().flat_map(|fault| fault.unreported(instead(fault), &doctor, &verify)).collect();
        let expected = faults.iter().flat_map(|fault| {
            let sometimes =
                SOMETIMES.iter().filter(|(name, _)| *name == fault.name).map(|(_, expected)| expected);
            instead(fault).unwrap_or(fault.doctor).iter().chain(sometimes)
        });
        let expected: Vec<&Expected> = expected.collect();
        let is_explained = |finding: &&Value| expected.iter().any(|expected| expected.is(finding));
        let findings = doctor["findings"].as_array().unwrap();
        let hidden = faults.iter().filter(|fault| instead(fault).is_some()).flat_map(|fault| fault.doctor);
        let reported = hidden.filter(|hidden| findings.iter().any(|finding| hidden.is(finding)));
        misses.extend(reported.map(|hidden| format!("not hidden: {hidden:?}")));
        let wrong = findings.iter().filter(|finding| finding["state"] == "wrong");
        misses.extend(wrong.filter(|finding| !is_explained(finding)).map(|it| format!("unexpected: {it}")));
        if !misses.is_empty() {
            misses.push(format!("doctor: {doctor}\nverify: {verify}"));
        }
        misses
    })
}

/// Plants each group of faults, and fails with every miss.
fn assert_reported(groups: Vec<(AgentState, Vec<&Fault>)>) {
    let found = in_parallel_at_most(THREADS, groups, |(agent, faults)| {
        let names: Vec<&str> = faults.iter().map(|fault| fault.name).collect();
        let misses = catch_unwind(AssertUnwindSafe(|| misses(agent, &faults)));
        let misses = misses.unwrap_or_else(|_| vec!["a panic".to_owned()]);
        (!misses.is_empty()).then(|| format!("{} ({agent:?}):\n{}", names.join(" + "), misses.join("\n")))
    });
    let found: Vec<String> = found.into_iter().flatten().collect();
    assert!(found.is_empty(), "{} failed:\n{}", found.len(), found.join("\n\n"));
}

/// The nodes on which all of these faults can be planted.
fn agents(faults: &[&Fault]) -> Vec<AgentState> {
    let both = [AgentState::Running, AgentState::Absent];
    both.into_iter()
        .filter(|agent| faults.iter().all(|fault| fault.agent.is_none_or(|needed| needed == *agent)))
        .collect()
}

#[test]
fn nothing_is_wrong_on_a_healthy_node() {
    for agent in [AgentState::Running, AgentState::Absent] {
        let (doctor, verify) = with_directory_in_memory(|directory| {
            let node = HealthyNode::new(directory, agent);
            (node.doctor(), node.verify())
        });
        assert!(doctor["well"] == true && verify["holds"] == true, "{doctor:#}\n{verify:#}");
        assert_eq!(verify["sandboxes"][0]["proxy_silent_on"], serde_json::json!([]), "{verify:#}");
        assert!(!verify.to_string().contains("its policy captures no"), "{verify:#}");
        for fault in FAULTS {
            let found = fault
                .doctor
                .iter()
                .find(|expected| doctor["findings"].as_array().unwrap().iter().any(|it| expected.is(it)));
            assert!(found.is_none(), "{}: {doctor:#}", fault.name);
        }
    }
}

#[test]
fn each_fault_alone_is_named_with_its_remedy() {
    assert!(FAULTS.len() >= 25);
    let alone =
        FAULTS.iter().flat_map(|fault| agents(&[fault]).into_iter().map(move |agent| (agent, vec![fault])));
    assert_reported(alone.collect());
}

/// Tries every fourth pair, and every pair in which one fault hides the other; with `GYBE_EXHAUSTIVE`, every pair.
#[test]
fn of_two_faults_both_are_named_or_the_one_that_hides_the_other() {
    let pairs = FAULTS
        .iter()
        .enumerate()
        .flat_map(|(index, one)| FAULTS[index + 1..].iter().map(move |two| [one, two]));
    let stand_together = |[one, two]: &[&Fault; 2]| !one.parts.iter().any(|part| two.parts.contains(part));
    let groups: Vec<_> = pairs
        .filter(stand_together)
        .flat_map(|pair| agents(&pair).into_iter().take(1).map(move |agent| (agent, pair.to_vec())))
        .collect();
    assert!(groups.len() >= 300, "{} pairs", groups.len());
    let hides = |pair: &[&Fault]| pair.iter().any(|one| HIDDEN.iter().any(|it| it.applies(one, pair)));
    let is_tried = |(n, (_, pair)): &(usize, (_, Vec<&Fault>))| is_exhaustive() || n % 4 == 0 || hides(pair);
    let tried: Vec<_> = groups.into_iter().enumerate().filter(is_tried).map(|(_, group)| group).collect();
    let is_in_a_pair =
        |fault: &Fault| tried.iter().any(|(_, pair)| pair.iter().any(|it| it.name == fault.name));
    assert!(FAULTS.iter().all(is_in_a_pair), "{} pairs", tried.len());
    assert_reported(tried);
}

/// A fault that another one hides on a node with both.
pub(crate) struct Hidden {
    pub(crate) fault: &'static str,
    /// The beginnings of the names of the faults that hide it.
    pub(crate) behind: &'static [&'static str],
    /// What is reported instead.
    pub(crate) instead: &'static [Expected],
}

impl Hidden {
    pub(crate) fn applies(&self, fault: &Fault, others: &[&Fault]) -> bool {
        let hides = |other: &&Fault| self.behind.iter().any(|name| other.name.starts_with(name));
        self.fault == fault.name && others.iter().any(hides)
    }
}

/// What is reported of a fault at some moments.
pub(crate) const SOMETIMES: &[(&str, Expected)] = &[
    // The agent limits its writes.
    (
        "another program keeps rewriting the conf file",
        wrong("chain", NOT_READY, "gybe-cni is not in 10-pods", "the agent"),
    ),
    (
        "another program keeps rewriting the conf file",
        wrong("agent", NOT_READY, "10-pods.conflist", "docs/AGENT.md"),
    ),
];

/// Without the agent, and without the entry that names the source of pods, a pod's policy is not known, and its rules
/// alone are judged.
const WITHOUT_POLICY: &[&str] = &[
    "the agent is dead",
    "the primary rewrote the conf file",
    "the conf file is",
    "a value of the entry is invalid",
];

pub(crate) const HIDDEN: &[Hidden] = &[
    Hidden {
        fault: "the pod's rules were deleted",
        behind: WITHOUT_POLICY,
        instead: &[wrong("pods", "GybePodsNotRedirected", "there are no rules of Gybe", "gybe verify --all")],
    },
    Hidden {
        fault: "IPv6 is off in the pod, and a rule is missing",
        behind: WITHOUT_POLICY,
        instead: &[wrong(
            "pods",
            "GybePodsNotRedirected",
            "NOT REDIRECTED: chain nat-prerouting of table inet gybe has no rule",
            "gybe verify --pod shop/cart-1",
        )],
    },
    Hidden { fault: "IPv6 was switched off in the pod", behind: WITHOUT_POLICY, instead: &[] },
    Hidden {
        fault: "the pod got an IPv6 address after its rules were written",
        behind: WITHOUT_POLICY,
        instead: &[],
    },
    Hidden { fault: "the pod's policy captures no inbound connection", behind: WITHOUT_POLICY, instead: &[] },
    Hidden { fault: "the proxy listens and does not accept", behind: WITHOUT_POLICY, instead: &[] },
    Hidden { fault: "the proxy does not listen", behind: WITHOUT_POLICY, instead: &[] },
    Hidden {
        fault: "DNS is captured, and the resolver does not listen for datagrams",
        behind: WITHOUT_POLICY,
        instead: &[],
    },
    Hidden { fault: "the proxy listens on 127.0.0.1 only", behind: WITHOUT_POLICY, instead: &[] },
    Hidden { fault: "the proxy runs as another user", behind: WITHOUT_POLICY, instead: &[] },
    Hidden {
        fault: "a backend is configured whose programs are missing",
        behind: &["no backend works"],
        instead: &[],
    },
];

/// The chart's platforms: the directories of each are in `manifests/chart/files/platforms.yaml`.
const PLATFORMS: &str = include_str!("../../../manifests/chart/files/platforms.yaml");

/// What identifies a node of the platform, beside its directories: an existing path, or the id in os-release(5).
fn signs(platform: &str) -> (&'static [&'static str], &'static str) {
    match platform {
        "openshift" => (&[], "rhcos"),
        "k3d" => (&["bin/host-local"], ""),
        "bottlerocket" => (&[], "bottlerocket"),
        "talos" => (&[], "talos"),
        _ => (&[], "debian"),
    }
}

#[test]
fn on_a_healthy_node_of_each_platform_the_doctor_finds_nothing() {
    let platforms: BTreeMap<&str, Value> = serde_saphyr::from_str(PLATFORMS).unwrap();
    assert_eq!(platforms.len(), 13);
    for (platform, values) in &platforms {
        let directory = |key: &str| {
            let set = values[key].as_str().or_else(|| platforms["default"][key].as_str());
            set.unwrap().trim_start_matches('/').to_owned()
        };
        let (conf, programs) = (directory("cniConfDir"), directory("cniBinDir"));
        let root =
            TestDir::new(&format!("platform-{platform}")).with_subdirectories(&["var/lib/cni/results"]);
        let (paths, id) = signs(platform);
        root.write("etc/os-release", format!("ID={id}\n"));
        let write_program = |path: String| {
            let answer = r#"{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}"#;
            let path = root.write(path, format!("#!/bin/sh\n# {BUILD_MARK}\necho '{answer}'\n"));
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        };
        paths.iter().for_each(|path| write_program((*path).to_owned()));
        let multus = values["settings"]["shape"] == "standalone";
        for program in ["bridge", "loopback", "multus"] {
            write_program(format!("{programs}/{program}"));
        }
        write_program("image/gybe".to_owned());
        write_program("image/gybe-cni".to_owned());
        root.create_dir(&conf);
        if !multus {
            let primary = r#"{ "cniVersion": "1.0.0", "name": "pods", "plugins": [{ "type": "bridge" }] }"#;
            root.write(format!("{conf}/10-pods.conflist"), primary);
        }
        let path = root.path().to_str().unwrap();
        let gybe = |arguments: &[&str]| -> Run {
            ours("gybe", &[arguments, &["--root", path]].concat(), "").unwrap()
        };
        let (image, run) = (format!("{path}/image"), format!("{path}/run/gybe"));
        let shape: &[&str] =
            if multus { &["--shape", "standalone", "--conf-name", "istio-cni.conf"] } else { &[] };
        let installed =
            gybe(&[&["install", "--from", &image, "--pods-from", "/etc/gybe/pods"], shape].concat());
        assert_eq!(installed.code, Some(0), "{platform}: {installed:?}");
        let ran = gybe(&["doctor", "--run-dir", &run, "--json"]);
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        assert!(ran.code == Some(0) && report["well"] == true, "{platform}: {report:#}");
        let placed = root.join(&programs).join("gybe-cni").exists();
        assert!(placed, "{platform}: the plugin is in the platform's directory {programs}");
        let verified = gybe(&["verify", "--all", "--json"]);
        assert_eq!(verified.code, Some(0), "{platform}: {verified:?}");
    }
}
