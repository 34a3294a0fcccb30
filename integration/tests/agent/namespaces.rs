//! An ADD writes to the namespace that CNI_NETNS named when the runtime called, and never to the plugin's own.

use crate::ground::{inspected, pod};
use gybe_integration::plugin_call::{PluginCall, PluginDir};
use gybe_integration::programs::run;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::thread;

/// During the query to the agent the sandbox ends, and the next sandbox gets its path.
#[test]
fn the_namespace_that_the_path_named_before_the_query_is_redirected_and_no_other() {
    let (place, meant, next) = (PluginDir::new("agent-namespaces"), pod(), pod());
    let (path, socket) = (place.path().join("netns"), place.run().join("facts.sock"));
    symlink(meant.path(), &path).unwrap();
    let mut add = PluginCall::add(&meant, &place).unwrap().with_backend("nft");
    add.env.insert("CNI_NETNS".into(), path.display().to_string());
    add.stdin["facts"] = json!({ "socket": socket });
    let listener = UnixListener::bind(&socket).unwrap();
    let replacement = place.path().join("netns.new");
    symlink(next.path(), &replacement).unwrap();
    let agent = thread::spawn(move || {
        let (mut plugin, _) = listener.accept().unwrap();
        BufReader::new(&plugin).read_line(&mut String::new()).unwrap();
        fs::rename(replacement, path).unwrap();
        let pod: Value = serde_json::from_str(include_str!("../../../examples/pod.json")).unwrap();
        plugin.write_all(format!("{}\n", json!({ "version": 1, "pod": pod })).as_bytes()).unwrap();
    });
    let ran = add.run(&place, "").unwrap();
    agent.join().unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(inspected(&meant).contains("outbound-to-proxy"), "{}", inspected(&meant));
    assert!(inspected(&next).starts_with("no rules of Gybe"), "{}", inspected(&next));
}

/// At the plugin's first stat the path does not exist; when the plugin opens it, it leads to the node's namespace, for
/// which the test uses one of its own.
#[test]
fn a_path_that_leads_to_the_plugins_own_namespace_only_when_it_is_opened_is_refused() {
    let (place, node) = (PluginDir::new("agent-own-namespace"), pod());
    let path = node.path().display().to_string();
    let add = PluginCall::add(&node, &place).unwrap().with_backend("nft");
    let record = place.path().join("record");
    let strace = format!(
        "strace -qq -f -P {path} -e trace=stat,newfstatat,statx -e inject=stat,newfstatat,statx:error=ENOENT:when=1 -o {}",
        record.display()
    );
    let ran = node.run(|| add.run(&place, &strace)).unwrap().unwrap();
    let record = fs::read_to_string(record).unwrap();
    assert!(record.contains("ENOENT (No such file or directory) (INJECTED)"), "{record}");
    assert!(ran.code == Some(1) && ran.out.contains("GYBE-ADD-021"), "{ran:?}");
    assert_eq!(node.run(|| run("nft", &["list", "ruleset"], "")).unwrap().unwrap().out, "");
}
