//! ADD beside the plugin `loopback`, which the runtime runs at the same time: whether it waits for its end.

use gybe_integration::failure::Failure;
use gybe_integration::plugin_call::{PluginCall, PluginDir, pod};
use gybe_test_support::install;
use std::fs;
use std::path::Path;

/// The runtime: runs `loopback` for the namespace and the plugin at the same time. Prints how `loopback` ended: with 0
/// before the plugin did, or killed after it.
const RUNTIME: &str = r#"
netns=$1 directory=$2
shift 2
CNI_NETNS=$netns "$directory/loopback" 3 &
until grep -qz ^CNI_NETNS= "/proc/$!/environ"; do
    [ $((tries += 1)) -lt 500 ] || { echo "loopback does not start" >&2; kill "$!"; exit 70; }
    sleep 0.01
done
"$@"
code=$?
kill "$!" 2>/dev/null
wait "$!"
echo "loopback: $?" >&2
exit "$code"
"#;

/// Makes an ADD by a process with the name of this runtime, on a node with these cached results, where `ID` is the call's
/// sandbox. Returns whether the ADD waited for `loopback`.
fn waits(test: &str, runtime: &str, results: &[&str]) -> Result<bool, Failure> {
    let (directory, pod) = (PluginDir::new(test), pod()?);
    let (own, netns) = (directory.path().display(), pod.path().display().to_string());
    install(Path::new("/bin/sleep"), &directory.path().join("loopback"));
    install(Path::new("/bin/sh"), &directory.path().join(runtime));
    fs::write(directory.path().join("runtime.sh"), RUNTIME)?;
    let call = PluginCall::add(&pod, &directory)?.with_backend("nft");
    let id = call.env.get("CNI_CONTAINERID").ok_or_else(|| Failure::new("no container id"))?;
    let cached: String =
        results.iter().map(|name| format!(">/var/lib/cni/results/{}\n", name.replace("ID", id))).collect();
    let node = format!(
        "set -e\nmount -t tmpfs none /var/lib\nmkdir -p /var/lib/cni/results\n{cached}\
         exec {own}/{runtime} {own}/runtime.sh {netns} {own} \"$@\"\n"
    );
    fs::write(directory.path().join("node.sh"), node)?;
    let ran = call.run(&directory, &format!("sh {own}/node.sh"))?;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    assert!(ran.err.contains(r#""decision":"redirect""#), "{ran:#?}");
    match (ran.err.contains("loopback: 0\n"), ran.err.contains("loopback: 143\n")) {
        (true, false) => Ok(true),
        (false, true) => Ok(false),
        _ => Err(Failure::new(format!("{ran:#?}"))),
    }
}

#[test]
fn f19_without_a_cached_result_an_add_waits_for_the_loopback_plugin() -> Result<(), Failure> {
    assert!(waits("loopback-runs", "containerd", &[])?);
    let others = ["cni-loopback-other-lo", "cni-loopback-ID-eth0", "gybe-test-ID-lo", "cni-loopback-ID"];
    assert!(waits("loopback-others", "containerd", &others)?);
    Ok(())
}

#[test]
fn f19_an_add_waits_no_longer_than_until_the_runtime_has_cached_the_result_of_loopback() -> Result<(), Failure>
{
    assert!(!waits("loopback-cached", "containerd", &["cni-loopback-ID-lo"])?);
    Ok(())
}

#[test]
fn f19_an_add_by_crio_which_runs_no_loopback_plugin_does_not_wait() -> Result<(), Failure> {
    assert!(!waits("loopback-crio", "crio", &[])?);
    Ok(())
}
