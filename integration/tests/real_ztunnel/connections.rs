//! Connections of pods that came by ADD: between pods, from and to hosts outside of the mesh, DNS, and probes.

use crate::BACKENDS;
use crate::clients::{Clients, EndOnDrop, PORT, connect, connect_here};
use crate::node::Pod;
use crate::resolver::{ADDRESS, query_tcp, query_udp};
use crate::world::{HOST, NODE, World, addresses};
use gybe_demo::testnet::namespace::Namespace;
use gybe_installer::sandboxes::probe_exemption::ExemptionReport;
use gybe_integration::namespace::with_own_mounts;
use gybe_test_support::wait_until;
use nix::unistd::{Uid, setfsuid};
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use std::thread;

/// The source of the kubelet's probes.
const PROBE: [&str; 2] = ["169.254.7.127", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff"];
/// The service of `cart-2`.
const SERVICE: [&str; 2] = ["10.96.0.10", "fd00:96::10"];

#[test]
fn connections_dns_and_probes_of_added_pods_pass_ztunnel_with_every_backend() {
    for backend in BACKENDS {
        with_own_mounts(|| connect_all(backend));
    }
}

/// The way of a connection, as ztunnel's access log shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By HBONE, from one proxy to the other.
    Hbone,
    /// Plain text that a pod receives.
    Inbound,
    /// Plain text that a pod sends.
    Outbound,
    /// Past ztunnel.
    Direct,
}

fn socket_address(address: &str, port: u16) -> String {
    SocketAddr::new(address.parse().unwrap(), port).to_string()
}

/// Reports whether an access-log line is about a connection of this client to this server.
fn is_about(line: &Value, direction: &str, client: &str, server: &str) -> bool {
    let has_client = |name: &str| {
        let address = line[name].as_str().and_then(|it| it.parse::<SocketAddr>().ok());
        address.is_some_and(|it| it.ip().to_canonical() == client.parse::<IpAddr>().unwrap())
    };
    let server = socket_address(server, PORT);
    let has_server = ["dst.addr", "dst.hbone_addr"].iter().any(|name| line[name] == server.as_str());
    line["direction"] == direction && line["error"].is_null() && has_client("src.addr") && has_server
}

/// Determines the way of the connections between two addresses.
fn way(log: &[Value], client: &str, server: &str) -> Option<Way> {
    let of = |direction: &str| log.iter().find(|line| is_about(line, direction, client, server));
    let is_hbone = |line: &Value| {
        let to = line["dst.addr"].as_str().unwrap_or_default();
        line["src.identity"].is_string() && line["dst.identity"].is_string() && to.ends_with(":15008")
    };
    match (of("outbound"), of("inbound")) {
        (Some(outbound), Some(inbound)) if is_hbone(outbound) && is_hbone(inbound) => Some(Way::Hbone),
        (Some(outbound), None) if outbound["src.identity"].is_null() => Some(Way::Outbound),
        (None, Some(inbound)) if inbound["src.identity"].is_null() => Some(Way::Inbound),
        (None, None) => Some(Way::Direct),
        _ => None,
    }
}

/// Connects as a user of this namespace; returns the address that the server sees.
fn source(from: &Namespace, uid: u32, to: &str) -> std::io::Result<String> {
    let connect = || {
        setfsuid(Uid::from_raw(uid));
        connect_here(SocketAddr::new(to.parse().unwrap(), PORT)).map(|(_, source)| source)
    };
    from.run(connect).unwrap()
}

fn connect_all(backend: &str) {
    let world = World::start(&format!("ztunnel-{backend}"), backend);
    let ztunnel = world.node.ztunnel();
    // Each ADD has waited for it.
    let [one, two] = [1, 2].map(|number| world.added(number));
    assert!(ztunnel.is_ready());
    let clients = Clients::new();
    thread::scope(|scope| {
        let ends = EndOnDrop(&clients);
        for server in [&one.netns, &two.netns, &world.host] {
            clients.serve(scope, server);
        }
        let log = [0, 1].map(|family| connections(&world, &one, &two, family)).concat();
        let queries: usize = addresses(2).iter().map(|server| queries(&one, server)).sum();
        wait_until("the addresses of the pods are exempt", || {
            let report = ExemptionReport::kept_in(&world.node.cluster.node.root.join("run/gybe"));
            report.is_some_and(|report| report.addresses.len() == 4)
        });
        [0, 1].into_iter().for_each(|family| probes(&world, family));
        let is_denied = |line: &&Value| {
            line["error"].as_str().is_some_and(|why| why.contains("istio_converted_static_strict"))
        };
        wait_until("the denials are logged", || ztunnel.access_log().iter().filter(is_denied).count() == 4);
        println!("{backend}: {} connections, {queries} DNS queries, 4 denials, 2 probes", log.len());
        drop(ends);
    });
}

/// Connects between the pods, and to and from the host outside of the mesh; returns what it has connected.
fn connections(world: &World, one: &Pod, two: &Pod, family: usize) -> Vec<String> {
    let [first, second] = [1, 2].map(|number| addresses(number)[family].clone());
    let (first, second, host) = (first.as_str(), second.as_str(), HOST[family]);
    let all = [
        (&one.netns, first, second, Way::Hbone),
        (&two.netns, second, second, Way::Direct),
        (&world.host, host, first, Way::Inbound),
        (&one.netns, first, host, Way::Outbound),
    ];
    for (from, client, server, _) in all {
        assert_eq!(connect(from, server).unwrap().1, client, "to {server}");
    }
    wait_until("each way is in the access log", || {
        let log = world.node.ztunnel().access_log();
        all.iter().all(|(_, client, server, expected)| way(&log, client, server) == Some(*expected))
    });
    let service = SocketAddr::new(SERVICE[family].parse().unwrap(), 80);
    assert_eq!(one.netns.run(|| connect_here(service)).unwrap().unwrap().1, first, "to {service}");
    wait_until("ztunnel has sent it to cart-2", || {
        let log = world.node.ztunnel().access_log();
        let is_it = |line: &&Value| line["dst.service"] == "cart.shop.svc.cluster.local";
        log.iter().filter(is_it).any(|line| is_about(line, "outbound", first, second))
    });
    let ways = all.map(|(_, client, server, way)| format!("{client} to {server}: {way:?}"));
    ways.into_iter().chain([format!("{first} to {service}")]).collect()
}

/// Queries names of the mesh and others at an address where nothing listens; returns how many.
fn queries(from: &Pod, server: &str) -> usize {
    let server = server.parse().unwrap();
    let names = [("cart.shop.svc.cluster.local", SERVICE[0]), ("example.org", &ADDRESS.to_string())];
    for (name, expected) in names {
        for answer in [query_udp(&from.netns, server, name), query_tcp(&from.netns, server, name)] {
            assert_eq!(answer.unwrap().to_string(), expected, "{name} at {server}");
        }
    }
    2 * names.len()
}

/// Probes `cart-2`, which requires mutual TLS, from the node.
fn probes(world: &World, family: usize) {
    let node = &world.node.cluster.node.own;
    let [first, second] = [1, 2].map(|number| addresses(number)[family].clone());
    assert_eq!(source(node, 0, &second).unwrap(), PROBE[family]);
    // The controls: plain text of other hosts and users is refused, except where it is allowed.
    assert!(source(&world.host, 0, &second).is_err() && source(node, 1000, &second).is_err());
    assert_eq!(source(node, 1000, &first).unwrap(), NODE[family]);
}
