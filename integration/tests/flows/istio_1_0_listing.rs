//! Istio 1.0's rules: one inbound port, inbound and outbound both redirected to 15001, the proxy as user and group
//! 1337. The expected outcomes are written by hand, and differences to today's rules are marked.
//!
//! ```text
//! -A PREROUTING -p tcp -j ISTIO_INBOUND
//! -A OUTPUT -p tcp -j ISTIO_OUTPUT
//! -A ISTIO_INBOUND -p tcp --dport 80 -j ISTIO_REDIRECT
//! -A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -j ISTIO_REDIRECT
//! -A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN
//! -A ISTIO_OUTPUT -m owner --gid-owner 1337 -j RETURN
//! -A ISTIO_OUTPUT -d 127.0.0.1/32 -j RETURN
//! -A ISTIO_OUTPUT -j ISTIO_REDIRECT
//! -A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001
//! ```

use gybe_installer::pod::policy_file::PolicyFile;
use gybe_integration::failure::Failure;
use gybe_integration::flow_check::{Rules, Until, check_vector, differences};
use gybe_integration::topology::Topology;
use gybe_integration::vectors::{Flow, Location, Vector};
use gybe_netfilter::apply::redirection::Redirection;
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::ruleset::Transport;
use gybe_netfilter::nft::Nft;

const POLICY: &str = r#"{
    "proxy_port": 15001, "inbound_capture_port": 15001, "inbound_ports_include": ["80"],
    "proxy_uids": ["1337"], "proxy_gids": ["1337"], "enable_ipv6": false
}"#;

const APP: Owner = Owner { uid: 1000, gid: 1000 };
const PROXY: Owner = Owner { uid: 1337, gid: 1337 };
const PROXY_USER: Owner = Owner { uid: 1337, gid: 1000 };
const PROXY_GROUP: Owner = Owner { uid: 2000, gid: 1337 };

const TO_PROXY: &str = "envoy:15001";

#[test]
fn with_istio_1_0s_policy_every_connection_has_the_expected_outcome() -> Result<(), Failure> {
    let flows = [
        // Inbound: the one port, and no other.
        flow(Location::Peer, APP, "10.244.0.10:80", ["refused", TO_PROXY])?,
        flow(Location::Peer, APP, "10.244.0.10:8080", ["app:8080", "app:8080"])?,
        // Outbound: all connections of the application, none of the proxy, which is matched by user or by group.
        flow(Location::Pod, APP, "10.1.2.3:80", ["ext-peer", TO_PROXY])?,
        flow(Location::Pod, APP, "20.1.2.3:9000", ["ext-peer", TO_PROXY])?,
        flow(Location::Pod, PROXY, "10.1.2.3:80", ["ext-peer", "ext-peer"])?,
        flow(Location::Pod, PROXY_USER, "10.1.2.3:80", ["ext-peer", "ext-peer"])?,
        flow(Location::Pod, PROXY_GROUP, "10.1.2.3:80", ["ext-peer", "ext-peer"])?,
        // Connections to 127.0.0.1 inside the pod are direct for every user.
        flow(Location::Pod, APP, "127.0.0.1:8080", ["app:8080", "app:8080"])?,
        flow(Location::Pod, PROXY, "127.0.0.1:8080", ["app:8080", "app:8080"])?,
        // The proxy's connections to its own pod's address are redirected to the proxy.
        flow(Location::Pod, PROXY, "10.244.0.10:8080", ["app:8080", TO_PROXY])?,
        // Different today: the old fourth rule matched no owner, so the application's connections to its own pod's
        // address were redirected too. Now they are direct.
        flow(Location::Pod, APP, "10.244.0.10:8080", ["app:8080", "app:8080"])?,
        // Different today: for the same reason connections of a proxy that is matched by group alone were redirected.
        flow(Location::Pod, PROXY_GROUP, "10.244.0.10:8080", ["app:8080", "app:8080"])?,
        // Different today: the proxy's tunnel port 15008, which did not exist then, is excluded from that redirect.
        flow(Location::Pod, PROXY, "10.244.0.10:15008", ["envoy:15008", "envoy:15008"])?,
    ];
    let policy = PolicyFile::parse(POLICY)?.policy(&[])?;
    let vector = Vector { name: "istio-1.0".into(), policy, flows: flows.to_vec() };
    let topology = Topology::new(vector.policy.mode, &vector.flows)?;
    let control = differences(&topology, &vector.flows, Rules::Absent, Until::End)?;
    assert!(control.is_empty(), "without rules: {control:#?}");
    let found = check_vector(&vector, &Redirection::of(&vector.policy), &Nft, Until::End)?;
    assert!(found.is_empty(), "with rules: {found:#?}");
    Ok(())
}

fn flow(from: Location, owner: Owner, to: &str, [without, with]: [&str; 2]) -> Result<Flow, Failure> {
    let source = match from {
        Location::Pod if to.starts_with("127.") => "127.0.0.1",
        Location::Pod => "10.244.0.10",
        _ => "10.244.0.1",
    };
    // Listeners outside the pod do not report the original destination; without a redirect it is the same.
    let outcome = |by: &str| match by {
        "refused" => by.to_owned(),
        TO_PROXY => format!("{by} orig={to} src={source}"),
        _ => format!("{by} src={source}"),
    };
    Ok(Flow {
        id: format!("{from:?} {owner:?} {to}"),
        from,
        transport: Transport::Tcp,
        to: to.parse()?,
        owner,
        source: None,
        source_port: None,
        mark: None,
        without_rules: outcome(without).parse()?,
        with_rules: outcome(with).parse()?,
    })
}
