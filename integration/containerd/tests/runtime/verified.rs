//! `gybe verify --all` on a node with sandboxes of every kind: each has its line.

use std::fs;
use std::path::Path;
use std::process::Output;

use gybe_containerd_tests::{Generation, Node, Sandbox, config, manifest};
use serde_json::{Value, json};

use crate::ground::{agents_node, entries, gybe_node, on_every_generation, ours};

/// What `gybe verify` with these words prints on the node, and its exit code.
fn verify(node: &Node, words: &str) -> (Option<i32>, String, String) {
    let mut command = node.stage().command(Path::new("/nonexistent"), ours("gybe"));
    command.args(["verify", "--conf-dir", config::CONF_DIR]).args(words.split(' '));
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// Has a sandbox made, and gives its network namespace as the node sees it.
fn run(node: &Node, sandbox: &Sandbox, manifest: &Value) -> String {
    manifest::publish(node.stage(), sandbox, manifest).unwrap();
    let id = node.cri.run(sandbox).unwrap();
    node.cri.standing(&id).unwrap().netns.unwrap().display().to_string()
}

fn meshed(node: &Node, name: &str) -> String {
    let sandbox = Sandbox::injected("shop", name);
    run(node, &sandbox, &manifest::injected(&sandbox))
}

/// A program in a pod's network namespace, to its good end.
fn inside(node: &Node, netns: &str, line: &str) {
    let netns = format!("--net={netns}");
    let words: Vec<&str> = [netns.as_str()].into_iter().chain(line.split(' ')).collect();
    node.stage().run(Path::new("nsenter"), &words).unwrap();
}

on_every_generation! {
    fn every_sandbox_of_a_node_has_its_line(generation: Generation) {
        let node = gybe_node(generation);
        meshed(&node, "cart");
        let plain = Sandbox::named("shop", "plain");
        run(&node, &plain, &manifest::plain(&plain));
        let (code, out, err) = verify(&node, "--all");
        assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
        assert_eq!(
            out,
            "shop/cart   redirected\n\
             shop/plain  not meshed: it has no annotation sidecar.istio.io/status\n\
             2 sandboxes: 1 redirected, 1 not meshed\n",
        );

        let cut = meshed(&node, "cut");
        inside(&node, &cut, "nft delete table inet gybe");
        let drifted = meshed(&node, "drifted");
        inside(&node, &drifted, "nft flush chain inet gybe nat-prerouting");
        let init = Sandbox::injected("shop", "init");
        let mut manifest = manifest::injected(&init);
        manifest["spec"]["initContainers"] = json!([{ "name": "istio-init" }]);
        let init = run(&node, &init, &manifest);
        inside(&node, &init, "iptables-nft -t nat -N ISTIO_OUTPUT");
        let (code, out, err) = verify(&node, "--all");
        assert_eq!((code, err.as_str()), (Some(1), ""), "{out}");
        for line in [
            "shop/cart     redirected\n",
            "shop/cut      NOT REDIRECTED: no Gybe rules in this namespace\n",
            "shop/drifted  NOT REDIRECTED: ",
            "shop/init     redirected by another's rules: chain ISTIO_OUTPUT in table nat (IPv4)",
            "shop/plain    not meshed: ",
            "\n5 sandboxes: 1 redirected, 1 redirected by another's rules, 1 not meshed, 2 NOT REDIRECTED\n",
        ] {
            assert!(out.contains(line), "{line} in {out}");
        }

        let mut doctor = node.stage().command(Path::new("/nonexistent"), ours("gybe"));
        doctor.args(["doctor", "--json", "--conf-dir", config::CONF_DIR, "--bin-dir", config::BIN_DIR]);
        let told: Value = serde_json::from_slice(&doctor.output().unwrap().stdout).unwrap();
        let of_pods = told["findings"].as_array().unwrap().iter().filter(|it| it["about"] == "pods");
        let of_pods: Vec<_> = of_pods.map(|it| (it["state"].as_str().unwrap(), it["says"].as_str().unwrap())).collect();
        assert!(of_pods[0].1.starts_with("5 sandboxes: 1 redirected, "), "{of_pods:?}");
        let failing = ["shop/cut: NOT REDIRECTED: no Gybe rules", "shop/drifted: NOT REDIRECTED: "];
        for (finding, says) in of_pods[1..].iter().zip(failing) {
            assert!(finding.0 == "wrong" && finding.1.starts_with(says), "{of_pods:?}");
        }
        assert_eq!(of_pods.len(), 3, "{of_pods:?}");

        for (pod, expected, said) in [
            ("shop/cart", 0, "shop/cart  redirected\n"),
            ("shop/cut", 1, "shop/cut  NOT REDIRECTED: no Gybe rules in this namespace\n"),
        ] {
            let (code, out, err) = verify(&node, &format!("--pod {pod}"));
            assert_eq!((code, err.as_str()), (Some(expected), ""), "{out}");
            assert!(out.starts_with(said), "{out}");
        }
        let manifest = format!("{}/shop/cart.json", manifest::DIRECTORY);
        let (code, out, _) = verify(&node, &format!("--pod {manifest}"));
        assert_eq!((code, out.starts_with("shop/cart  redirected\n")), (Some(0), true), "{out}");
        let (code, _, err) = verify(&node, "--pod shop/nobody");
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains("this node shows no sandbox of pod shop/nobody"), "{err}");

        let (_, out, _) = verify(&node, "--all --json");
        let told: Value = serde_json::from_str(&out).unwrap();
        let cut_in_json = told["sandboxes"].as_array().unwrap().iter().find(|it| it["name"] == "cut").unwrap();
        assert_eq!((&told["holds"], &cut_in_json["verdict"]), (&json!(false), &json!("not-redirected")));
        assert_eq!(cut_in_json["netns"].as_str().unwrap().replace("/var/run/", "/run/"), cut.replace("/var/run/", "/run/"));
    }
}

on_every_generation! {
    fn without_a_source_that_knows_the_pods_their_rules_alone_are_judged_and_it_is_said(generation: Generation) {
        let node = agents_node(generation);
        let agent = node.start_agent(&ours("gybe")).unwrap();
        meshed(&node, "cart");
        let cut = meshed(&node, "cut");
        inside(&node, &cut, "nft delete table inet gybe");
        let drifted = meshed(&node, "drifted");
        inside(&node, &drifted, "nft flush chain inet gybe nat-output");
        let plain = Sandbox::named("shop", "plain");
        run(&node, &plain, &manifest::plain(&plain));
        let (code, out, err) = verify(&node, "--all");
        assert_eq!((code, err.as_str()), (Some(1), ""), "{out}");
        assert!(out.contains("shop/cut      NOT REDIRECTED: no Gybe rules in this namespace\n"), "{out}");

        agent.end(nix::sys::signal::Signal::SIGTERM).unwrap();
        let (code, out, err) = verify(&node, "--all");
        assert_eq!(code, Some(1), "{out}");
        assert!(err.contains("its rules alone are judged: the node agent at /run/gybe/facts.sock"), "{err}");
        for line in [
            "shop/cart     redirected\n",
            "shop/cut      unknown: ",
            "shop/drifted  NOT REDIRECTED: chain nat-output of table inet gybe has no rule\n",
            "shop/plain    not meshed: ",
        ] {
            assert!(out.contains(line), "{line} in {out}");
        }
        // The operator has the manifests.
        let (code, out, err) = verify(&node, &format!("--all --facts {}", manifest::DIRECTORY));
        assert_eq!((code, err.as_str()), (Some(1), ""), "{out}");
        assert!(out.contains("shop/cut      NOT REDIRECTED: "), "{out}");

        // What the cache has lost, its namespace still shows.
        for file in entries(&node, "/var/lib/cni/results") {
            fs::remove_file(node.stage().path("/var/lib/cni/results").join(file)).unwrap();
        }
        let (code, out, _) = verify(&node, "--all");
        assert_eq!(code, Some(1), "{out}");
        assert!(out.contains("4 sandboxes: 1 redirected, 2 not meshed, 1 NOT REDIRECTED\n"), "{out}");
    }
}
