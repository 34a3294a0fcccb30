//! `gybe verify` on a node with sandboxes of every kind.

use std::fs;
use std::path::Path;
use std::process::Output;

use gybe_containerd_tests::{Generation, Node, Sandbox, containerd, manifest};
use serde_json::{Value, json};

use crate::fixture::{entries, gybe_node, node_with_agent_facts, on_every_generation, program};

/// Runs `gybe verify` on the node and returns exit code, standard output and standard error.
fn verify(node: &Node, arguments: &str) -> (Option<i32>, String, String) {
    let mut command = node.host().command(Path::new("/nonexistent"), program("gybe"));
    command.args(["verify", "--conf-dir", containerd::CONF_DIR]).args(arguments.split(' '));
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// Starts a sandbox and returns the path of its network namespace on the node.
fn run(node: &Node, sandbox: &Sandbox, manifest: &Value) -> String {
    manifest::publish(node.host(), sandbox, manifest).unwrap();
    let id = node.cri.run(sandbox).unwrap();
    node.cri.sandbox_status(&id).unwrap().netns.unwrap().display().to_string()
}

fn meshed(node: &Node, name: &str) -> String {
    let sandbox = Sandbox::injected("shop", name);
    run(node, &sandbox, &manifest::injected(&sandbox))
}

/// Runs a command in a pod's network namespace.
fn run_in_netns(node: &Node, netns: &str, line: &str) {
    let netns = format!("--net={netns}");
    let arguments: Vec<&str> = [netns.as_str()].into_iter().chain(line.split(' ')).collect();
    node.host().run(Path::new("nsenter"), &arguments).unwrap();
}

on_every_generation! {
    fn verify_prints_a_line_for_every_sandbox(generation: Generation) {
        let node = gybe_node(generation);
        meshed(&node, "cart");
        let plain = Sandbox::new("shop", "plain");
        run(&node, &plain, &manifest::plain(&plain));
        let (code, out, err) = verify(&node, "--all");
        assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
        assert_eq!(
            out,
            "POD         VERDICT\n\
             shop/cart   redirected\n\
             shop/plain  not meshed: it has no annotation sidecar.istio.io/status\n\
             2 sandboxes: 1 redirected, 1 not meshed\n",
        );

        let deleted = meshed(&node, "deleted");
        run_in_netns(&node, &deleted, "nft delete table inet gybe");
        let drifted = meshed(&node, "drifted");
        run_in_netns(&node, &drifted, "nft flush chain inet gybe nat-prerouting");
        let init = Sandbox::injected("shop", "init");
        let mut manifest = manifest::injected(&init);
        manifest["spec"]["initContainers"] = json!([{ "name": "istio-init" }]);
        let init = run(&node, &init, &manifest);
        run_in_netns(&node, &init, "iptables-nft -t nat -N ISTIO_OUTPUT");
        let (code, out, err) = verify(&node, "--all");
        assert_eq!((code, err.as_str()), (Some(1), ""), "{out}");
        for line in [
            "shop/cart     redirected\n",
            "shop/deleted  NOT REDIRECTED: no Gybe rules in this namespace\n",
            "shop/drifted  NOT REDIRECTED: ",
            "shop/init     redirected by another's rules: chain ISTIO_OUTPUT in table nat (IPv4)",
            "shop/plain    not meshed: ",
            "\n5 sandboxes: 1 redirected, 1 redirected by another's rules, 1 not meshed, 2 NOT REDIRECTED\n",
        ] {
            assert!(out.contains(line), "{line} in {out}");
        }

        let mut doctor = node.host().command(Path::new("/nonexistent"), program("gybe"));
        doctor.args(["doctor", "--json", "--conf-dir", containerd::CONF_DIR, "--bin-dir", containerd::BIN_DIR]);
        let report: Value = serde_json::from_slice(&doctor.output().unwrap().stdout).unwrap();
        let of_pods = report["findings"].as_array().unwrap().iter().filter(|it| it["about"] == "pods");
        let of_pods: Vec<_> = of_pods.map(|it| (it["state"].as_str().unwrap(), it["says"].as_str().unwrap())).collect();
        assert!(of_pods[0].1.starts_with("5 sandboxes: 1 redirected, "), "{of_pods:?}");
        let failing = ["shop/deleted: NOT REDIRECTED: no Gybe rules", "shop/drifted: NOT REDIRECTED: "];
        for (finding, says) in of_pods[1..].iter().zip(failing) {
            assert!(finding.0 == "wrong" && finding.1.starts_with(says), "{of_pods:?}");
        }
        assert_eq!(of_pods.len(), 3, "{of_pods:?}");

        for (pod, expected, line) in [
            ("shop/cart", 0, "POD        VERDICT\nshop/cart  redirected\n"),
            (
                "shop/deleted",
                1,
                "POD           VERDICT\nshop/deleted  NOT REDIRECTED: no Gybe rules in this namespace\n",
            ),
        ] {
            let (code, out, err) = verify(&node, &format!("--pod {pod}"));
            assert_eq!((code, err.as_str()), (Some(expected), ""), "{out}");
            assert!(out.starts_with(line), "{out}");
        }
        let manifest = format!("{}/shop/cart.json", manifest::DIRECTORY);
        let (code, out, _) = verify(&node, &format!("--pod {manifest}"));
        assert_eq!((code, out.starts_with("POD        VERDICT\nshop/cart  redirected\n")), (Some(0), true), "{out}");
        let (code, _, err) = verify(&node, "--pod shop/absent");
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains("this node has no sandbox of pod shop/absent"), "{err}");

        let (_, out, _) = verify(&node, "--all --json");
        let report: Value = serde_json::from_str(&out).unwrap();
        let deleted_in_json = report["sandboxes"].as_array().unwrap().iter().find(|it| it["name"] == "deleted").unwrap();
        assert_eq!((&report["holds"], &deleted_in_json["verdict"]), (&json!(false), &json!("not-redirected")));
        assert_eq!(deleted_in_json["netns"].as_str().unwrap().replace("/var/run/", "/run/"), deleted.replace("/var/run/", "/run/"));
    }
}

on_every_generation! {
    fn without_facts_about_the_pods_verify_evaluates_only_their_rules_and_reports_it(generation: Generation) {
        let node = node_with_agent_facts(generation);
        let agent = node.start_agent(&program("gybe")).unwrap();
        meshed(&node, "cart");
        let deleted = meshed(&node, "deleted");
        run_in_netns(&node, &deleted, "nft delete table inet gybe");
        let drifted = meshed(&node, "drifted");
        run_in_netns(&node, &drifted, "nft flush chain inet gybe nat-output");
        let plain = Sandbox::new("shop", "plain");
        run(&node, &plain, &manifest::plain(&plain));
        let (code, out, err) = verify(&node, "--all");
        assert_eq!((code, err.as_str()), (Some(1), ""), "{out}");
        assert!(out.contains("shop/deleted  NOT REDIRECTED: no Gybe rules in this namespace\n"), "{out}");

        agent.stop(nix::sys::signal::Signal::SIGTERM).unwrap();
        let (code, out, err) = verify(&node, "--all");
        assert_eq!(code, Some(1), "{out}");
        assert!(err.contains("so only its rules are judged: the node agent at /run/gybe/facts.sock"), "{err}");
        for line in [
            "shop/cart     redirected\n",
            "shop/deleted  unknown: ",
            "shop/drifted  NOT REDIRECTED: chain nat-output of table inet gybe has no rule\n",
            "shop/plain    not meshed: ",
        ] {
            assert!(out.contains(line), "{line} in {out}");
        }
        // With the manifests of the pods.
        let (code, out, err) = verify(&node, &format!("--all --facts {}", manifest::DIRECTORY));
        assert_eq!((code, err.as_str()), (Some(1), ""), "{out}");
        assert!(out.contains("shop/deleted  NOT REDIRECTED: "), "{out}");

        // Without a cached result, the namespace is still found.
        for file in entries(&node, "/var/lib/cni/results") {
            fs::remove_file(node.host().path("/var/lib/cni/results").join(file)).unwrap();
        }
        let (code, out, _) = verify(&node, "--all");
        assert_eq!(code, Some(1), "{out}");
        assert!(out.contains("4 sandboxes: 1 redirected, 2 not meshed, 1 NOT REDIRECTED\n"), "{out}");
    }
}
