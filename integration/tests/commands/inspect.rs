//! `gybe inspect`: the native command of its first line, and the names of a namespace.

use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::failure::Failure;
use gybe_integration::programs::{ours, run};
use gybe_integration::vectors;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::compile::compile;
use gybe_netfilter::iptables::{Iptables, Variant};
use gybe_netfilter::model::policy::RedirectPolicy;
use gybe_netfilter::nft::Nft;
use gybe_test_support::TestDir;
use serde_json::json;
use std::os::unix::fs::symlink;
use std::time::Duration;

/// The iptables deadline, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

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
    let backend = Iptables::find(Variant::Nft)?.with_deadline(PATIENCE);
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
