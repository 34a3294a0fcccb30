//! The command `gybe` on network namespaces and nodes: its arguments and output, doctor, inspect and trace; and the
//! demo.

#![cfg(test)]

mod ambient;
mod command_line;
mod doctor;

use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::failure::Failure;
use gybe_integration::namespace::in_parallel;
use gybe_integration::programs::{Run, ours, path_of_ours, patient_iptables, run};
use gybe_integration::vectors;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::compile::compile;
use gybe_netfilter::model::policy::RedirectPolicy;
use gybe_netfilter::model::ruleset::Engine;
use gybe_netfilter::nft::Nft;
use gybe_test_support::TestDir;
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

/// A namespace with the rules of a policy.
fn redirected(policy: &RedirectPolicy, backend: &dyn Backend) -> Result<Namespace, Failure> {
    let pod = Namespace::new()?;
    pod.run(|| backend.write(&mut backend.open()?, &compile(policy)))??;
    Ok(pod)
}

fn inspect(pod: &Namespace, words: &[&str]) -> Result<String, Failure> {
    let netns = pod.path().to_string_lossy().into_owned();
    let words = [&["inspect", "--netns", &netns][..], words].concat();
    let out = ours("gybe", &words, "")?;
    assert_eq!(out.code, Some(0), "{out:?}");
    Ok(out.out)
}

#[test]
fn the_native_command_lists_the_same_rules() -> Result<(), Failure> {
    let backend = patient_iptables(Engine::NfTables)?;
    let backends: [&dyn Backend; 2] = [&Nft, &backend];
    for backend in backends {
        let pod = redirected(&vectors::all()?[0].policy, backend)?;
        let text = inspect(&pod, &[])?;
        let first = text.lines().next().unwrap_or_default();
        let command = first.strip_prefix(&format!("{}: ", backend.name())).unwrap_or_default();
        let listed = run("sh", &["-c", command], "")?;
        assert_eq!(listed.code, Some(0), "{command}: {listed:?}");
        assert!(listed.out.contains("outbound-to-proxy"), "{command}: {}", listed.out);
    }
    Ok(())
}

/// A host's root directory with one sandbox, whose pod has one container, and a pod in the host's network.
fn host_with(pod: &Namespace, node: &Namespace, test: &str) -> TestDir {
    let root = TestDir::new(test);
    root.create_dir("run/netns");
    symlink(pod.path(), root.join("run/netns/cni-cart")).unwrap();
    let arguments = [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", "cart-0"], ["K8S_POD_UID", CART]];
    let cached =
        json!({ "containerId": "5a".repeat(32), "netns": "/run/netns/cni-cart", "cniArgs": arguments });
    root.write("var/lib/cni/results/net-eth0", cached.to_string());
    root.create_dir(format!("var/log/pods/shop_agent-0_{OF_NODE}"));
    let container = |uid: &str, id: &str| {
        format!("0::/kubepods.slice/kubepods-pod{}.slice/cri-containerd-{id}.scope\n", uid.replace('-', "_"))
    };
    let (cart, agent) = (container(CART, &"7c".repeat(32)), container(OF_NODE, &"8d".repeat(32)));
    for (pid, cgroup, netns) in [(1, "0::/init.scope\n", node), (4711, &cart, pod), (4712, &agent, node)] {
        root.create_dir(format!("proc/{pid}/ns"));
        root.write(format!("proc/{pid}/cgroup"), cgroup);
        symlink(netns.path(), root.join(format!("proc/{pid}/ns/net"))).unwrap();
    }
    root
}

const CART: &str = "863b91d4-4b68-4efa-917f-4b560e3e86aa";
const OF_NODE: &str = "11111111-4b68-4efa-917f-4b560e3e86aa";

#[test]
fn a_namespace_is_found_by_its_pod_a_container_or_a_process_and_a_hosts_is_not() -> Result<(), Failure> {
    let (pod, node) = (redirected(&vectors::all()?[0].policy, &Nft)?, Namespace::new()?);
    let host = host_with(&pod, &node, "inspect-names");
    let root = host.display().to_string();
    let gybe =
        |words: &str| ours("gybe", &words.split(' ').chain(["--root", &root]).collect::<Vec<_>>(), "{}");
    let names = [
        "--pod shop/cart-0",
        "--pid 4711",
        "--container-id 7c7c7c7c7c7c7",
        "--container-id containerd://5a5a",
    ];
    for name in names {
        let found = gybe(&format!("inspect {name}"))?;
        assert_eq!(found.code, Some(0), "{name}: {found:?}");
        assert!(found.out.contains("outbound-to-proxy"), "{name}: {found:?}");
    }
    let traced = gybe("trace --pid 4711 out tcp 10.1.2.3:80 --uid 1000 --json")?;
    // The namespace has no route.
    assert!(traced.out.contains("\"no-route\""), "{traced:?}");
    let verified = gybe("verify --container-id 7c7c --policy -")?;
    assert!(verified.err.contains("has no address but loopback"), "{verified:?}");
    for (words, says) in [
        ("inspect --pod shop/cart-1", "gybe: this node has no sandbox of pod shop/cart-1\n"),
        ("inspect --pod shop/agent-0", "gybe: pod shop/agent-0 uses the node's network\n"),
        ("remove --container-id 8d8d", "uses the node's network\n"),
        ("inspect --pid 4713", "proc/4713/ns/net"),
        ("inspect --pid 0", "'0'"),
        ("inspect --container-id ../x", "hexadecimal"),
        ("inspect --pod cart-0", "NAMESPACE/NAME"),
        ("inspect --pod shop/cart-0 --pid 4711", "cannot be used with"),
        ("apply --policy -", "required"),
        ("verify --pid 4711", "required"),
    ] {
        let refused = gybe(words)?;
        assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""), "{words}: {refused:?}");
        assert!(refused.err.contains(says), "{words}: {refused:?}");
    }
    assert_eq!(gybe("remove --pod shop/cart-0")?.code, Some(0));
    assert!(gybe("inspect --pod shop/cart-0")?.out.starts_with("no rules of Gybe"));
    Ok(())
}

#[test]
fn a_refused_connection_names_the_kind_of_route_and_an_absent_interface_is_an_error() -> Result<(), Failure> {
    let pod = Namespace::new()?;
    let script = "ip link add eth0 type veth peer name peer0 && ip link set eth0 up && ip addr add 10.244.0.10/24 dev eth0 && \
                  for kind in unreachable prohibit blackhole; do \
                  ip route add $kind 10.$((n = n + 1)).0.0/16; ip route add $kind fd00:$n::/32; done";
    let planted = pod.run(|| run("sh", &["-c", script], ""))??;
    assert_eq!(planted.code, Some(0), "{planted:?}");
    let netns = pod.path().to_string_lossy().into_owned();
    let trace = |words: &str| {
        let words: Vec<&str> = ["trace", "--netns", &netns].into_iter().chain(words.split(' ')).collect();
        ours("gybe", &words, "")
    };
    for (to, why) in [
        ("10.1.2.3:80", "an `unreachable` route (EHOSTUNREACH"),
        ("[fd00:1::1]:80", "an `unreachable` route (EHOSTUNREACH"),
        ("10.2.2.3:80", "a `prohibit` route (EACCES"),
        ("[fd00:2::1]:80", "a `prohibit` route (EACCES"),
        ("10.3.2.3:80", "a `blackhole` route, or a source that is not an address of the namespace (EINVAL"),
        ("[fd00:3::1]:80", "a `blackhole` route"),
        ("10.9.2.3:80", "no route (ENETUNREACH"),
    ] {
        let traced = trace(&format!("out tcp {to}"))?;
        assert!(traced.out.contains(&format!("before any rule: {why}")), "{to}: {traced:?}");
    }
    let bound = trace("out tcp 10.244.0.11:80 --bind-to eth0")?;
    assert!(bound.code == Some(0) && bound.out.contains(" by eth0"), "{bound:?}");
    for words in ["--bind-to eth9", "--bind-to eth9 --iface eth0"] {
        let absent = trace(&format!("out tcp 10.244.0.11:80 {words}"))?;
        assert_eq!(absent.code, Some(2), "{absent:?}");
        let says =
            ["the network namespace has no interface eth9, which --bind-to names", "hint: it has lo, "];
        assert!(says.iter().all(|part| absent.err.contains(part)), "{absent:?}");
    }
    Ok(())
}

fn demo(arguments: &[&str]) -> Result<Run, Failure> {
    ours("gybe-demo", arguments, "")
}

#[test]
fn with_all_rules_every_connection_reaches_its_destination_and_no_program_is_run() -> Result<(), Failure> {
    let run = demo(&["--json"])?;
    assert_eq!(run.code, Some(0), "{run:#?}");
    let report: Value = serde_json::from_str(&run.out)?;
    assert_eq!(report["as_expected"], true);
    assert_eq!(report["add"]["programs"], 0);
    assert_eq!(report["add"]["processes"], 0);
    let rows = report["connections"].as_array().map(Vec::len);
    assert_eq!(rows, Some(24));
    let is_redirected = |row: &&Value| row["with"].as_str().is_some_and(|with| with.contains(" orig="));
    let redirected = report["connections"].as_array().map(|rows| rows.iter().filter(is_redirected).count());
    assert!(redirected.is_some_and(|redirected| redirected >= 6), "{}", run.out);
    Ok(())
}

#[test]
fn without_any_one_rule_the_demo_fails_and_names_the_connections() -> Result<(), Failure> {
    let unknown = demo(&["--without", "no-such-rule"])?;
    assert_eq!(unknown.code, Some(2), "{unknown:#?}");
    let known = unknown.err.split("it has ").nth(1).unwrap_or_default().trim();
    let known: Vec<&str> = known.split(", ").collect();
    assert!(known.len() >= 12, "{known:?}");
    let runs = in_parallel(known, |rule| demo(&["--without", rule]).map(|run| (rule, run)));
    for run in runs {
        let (rule, run) = run?;
        assert_eq!(run.code, Some(1), "without {rule}: {run:#?}");
        assert!(run.out.contains("\nwrong: "), "without {rule}: {}", run.out);
    }
    Ok(())
}

/// The control of the demo's claim that the plugin runs no program.
#[test]
fn a_plugin_that_runs_programs_is_reported() -> Result<(), Failure> {
    let directory = TestDir::new("demo-runs-programs");
    let plugin = path_of_ours("gybe-cni")?;
    let script = write_plugin(&directory, &format!("#!/bin/sh\n/bin/true\nexec '{}'\n", plugin.display()))?;
    let run = demo(&["--plugin", &script.to_string_lossy()])?;
    assert_eq!(run.code, Some(1), "{run:#?}");
    assert!(run.out.contains("the ADD ran 2 programs and forked 1 processes"), "{}", run.out);
    assert!(run.out.contains("24 of 24 connections reached the expected destination"), "{}", run.out);
    Ok(())
}

#[test]
fn the_error_of_a_failing_plugin_is_printed_and_no_file_is_left() -> Result<(), Failure> {
    let directory = TestDir::new("demo-fails");
    let script =
        write_plugin(&directory, "#!/bin/sh\necho '{\"code\": 7, \"msg\": \"no such luck\"}'\nexit 1\n")?;
    let scratch = directory.create_dir("scratch");
    let (demo, setting) = (path_of_ours("gybe-demo")?, format!("TMPDIR={}", scratch.display()));
    let script = script.to_string_lossy();
    let run = run("env", &[&setting, &demo.to_string_lossy(), "--plugin", &script], "")?;
    assert_eq!(run.code, Some(2), "{run:#?}");
    assert!(run.err.contains("no such luck"), "{}", run.err);
    assert_eq!(fs::read_dir(&scratch)?.count(), 0);
    Ok(())
}

#[test]
fn without_privilege_the_hint_names_the_command() -> Result<(), Failure> {
    let demo = path_of_ours("gybe-demo")?;
    let run = run("setpriv", &["--bounding-set=-all", &demo.to_string_lossy()], "")?;
    assert_eq!(run.code, Some(2), "{run:#?}");
    assert!(run.err.contains("unshare --user --map-root-user --map-auto"), "{}", run.err);
    Ok(())
}

/// Writes a program that `--plugin` can name.
fn write_plugin(directory: &TestDir, text: &str) -> Result<PathBuf, Failure> {
    let path = directory.write("plugin", text);
    fs::set_permissions(&path, Permissions::from_mode(0o755))?;
    Ok(path)
}
