//! ADD, CHECK and DEL by the built plugin in a namespace, alone and with the built agent: input, annotations, address
//! families, system calls, the runtime's `loopback`, explained policies, and facts from the agent and from the API server.
#![cfg(test)]

mod agent;
mod annotations;
mod bad_input;
mod loopback;
mod system_calls;

use gybe_api_server::ApiServer;
use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::failure::Failure;
use gybe_integration::plugin_call::{PluginCall, PluginDir, pod};
use gybe_integration::programs::{ours, run};
use serde_json::{Value, json};

/// Creates the namespace of the example pod, whose policy has both families, and disables IPv6 in it.
fn without_ipv6() -> Result<Namespace, Failure> {
    let pod = pod()?;
    for interface in ["all", "default"] {
        pod.run(|| std::fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"), "1"))??;
    }
    let addresses = pod.run(|| run("ip", &["-6", "address"], ""))??;
    assert_eq!(addresses.out, "", "no IPv6 address remains");
    Ok(pod)
}

/// Makes an ADD; returns the log line about address families, and the rules that it wrote.
fn add(directory: &PluginDir, pod: &Namespace) -> Result<(String, String), Failure> {
    let call = PluginCall::add(pod, directory)?;
    let ran = call.run(directory, "")?;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let line = ran.err.lines().find(|line| line.contains("cmdAdd")).unwrap_or_default().to_owned();
    let check = call.with_verb("CHECK").run(directory, "")?;
    assert_eq!(check.code, Some(0), "{check:?}");
    let inspected = ours("gybe", &["inspect", "--netns", &pod.path().to_string_lossy()], "")?;
    Ok((line, inspected.out))
}

#[test]
fn f40_where_ipv6_is_off_only_ipv4_is_redirected_and_the_log_names_the_families() -> Result<(), Failure> {
    let directory = PluginDir::new("ipv6");
    // Alternately, because a result that the plugin wrongly kept from one pod would show in the next.
    for _ in 0..2 {
        let (line, rules) = add(&directory, &without_ipv6()?)?;
        assert!(line.contains(r#""families":"ipv4""#), "{line}");
        assert!(rules.contains("outbound-to-proxy") && !rules.contains("::6"), "{rules}");
        let (line, rules) = add(&directory, &pod()?)?;
        assert!(line.contains(r#""families":"ipv4 and ipv6""#), "{line}");
        assert!(rules.contains("outbound-to-proxy"), "{rules}");
    }
    Ok(())
}

#[test]
fn f40_no_backend_writes_ipv6_rules_where_ipv6_is_off() -> Result<(), Failure> {
    let directory = PluginDir::new("ipv6-backends");
    for backend in ["nft", "iptables-nft", "iptables-legacy"] {
        let pod = without_ipv6()?;
        let call = PluginCall::add(&pod, &directory)?.with_backend(backend);
        for verb in ["ADD", "CHECK", "DEL"] {
            let ran = call.clone().with_verb(verb).run(&directory, "")?;
            assert_eq!(ran.code, Some(0), "{backend} {verb}: {ran:?}");
        }
    }
    Ok(())
}

#[test]
fn without_an_agent_a_pod_is_redirected_by_the_facts_of_gybe_pod_facts() -> Result<(), Failure> {
    let (server, directory, pod) = (ApiServer::start()?, PluginDir::new("kubeconfig"), pod()?);
    let kubeconfig = server.kubeconfig(&directory.run())?;
    let mut call = PluginCall::add(&pod, &directory)?.with_backend("nft");
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_UID=u1";
    call.env.insert("CNI_ARGS".into(), args.into());
    call.stdin["facts"] = json!({ "socket": "", "kubeconfig": kubeconfig, "deadline_ms": 2000 });
    let inspect = || ours("gybe", &["inspect", "--netns", &pod.path().to_string_lossy()], "");

    let refused = call.run(&directory, "")?;
    assert!(
        refused.code == Some(1) && refused.out.contains("GYBE-ADD-017"),
        "the pod does not exist: {refused:?}"
    );
    assert!(inspect()?.out.starts_with("no rules of Gybe"));

    let mut example: Value = serde_json::from_str(include_str!("../../../examples/pod.json"))?;
    example["metadata"]["uid"] = "u1".into();
    server.put_pod(example);
    let added = call.run(&directory, "")?;
    assert_eq!(added.code, Some(0), "{added:?}");
    assert!(inspect()?.out.contains("outbound-to-proxy"));
    assert_eq!(server.requests().len(), 2, "{:?}", server.requests());
    Ok(())
}
