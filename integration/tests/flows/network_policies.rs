//! What a node's rules judge, such as those of a network policy: two pods, joined by a namespace that plays the node.
//! Each policy is written as other owners write theirs, and the same connection is made without Gybe's rules.

use gybe_demo::testnet::client::{Client, SourceOptions};
use gybe_demo::testnet::listener::{ListenAddress, Listeners, ListeningPort, ServerName};
use gybe_demo::testnet::namespace::{LinkEnd, Namespace, NextHop, forward, join, route};
use gybe_demo::testnet::outcome::ConnectionOutcome;
use gybe_integration::failure::Failure;
use gybe_integration::namespace::{in_parallel, sh};
use gybe_netfilter::apply::redirection::Redirection;
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::policy::ambient::{AmbientPolicy, ZTUNNEL_MARK};
use gybe_netfilter::model::policy::istio::{PASSTHROUGH_V4, PASSTHROUGH_V6};
use gybe_netfilter::model::policy::{Families, InterfaceName, Mode, RedirectPolicy};
use gybe_netfilter::model::ruleset::Transport;
use gybe_netfilter::nft::Nft;
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(5);
const NO_ANSWER_WITHIN: Duration = Duration::from_millis(500);
const APP: Owner = Owner { uid: 1000, gid: 1000 };
/// The application's port.
const PORT: u16 = 8080;

/// How a pod takes part in the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    Outside,
    Sidecar(Mode),
    Ambient,
}

use Member::{Ambient, Outside, Sidecar};

const TPROXY: Mode = Mode::Tproxy { mark: 1337, route_table: 133 };

/// Client and server.
const MEMBERS: [[Member; 2]; 6] = [
    [Outside, Outside],
    [Sidecar(Mode::Redirect); 2],
    [Sidecar(TPROXY); 2],
    [Outside, Sidecar(Mode::Redirect)],
    [Ambient, Ambient],
    [Outside, Ambient],
];

/// Whether the connection of a client outside the mesh, with a sidecar, and in ambient mode reaches the server.
type Passes = [bool; 3];

/// Rules (source, destination, port, verdict; `-` is any), the destination of the client's application, and the outcome.
/// `service` is a second address of the server, instead of which a proxy connects to the address `server`.
const POLICIES: [(&[&str], &str, Passes); 12] = [
    (&[], "server", [true, true, true]),
    (&[], "service", [true, true, true]),
    // Ingress. The server's redirect to 15006 is after the node. HBONE arrives at 15008, whatever the application's port.
    (&["client server 8080 accept", "- server - drop"], "server", [true, true, false]),
    (
        &["client server 8080 accept", "client server 15008 accept", "- server - drop"],
        "server",
        [true, true, true],
    ),
    (&["client server 15008 accept", "- server - drop"], "server", [false, false, true]),
    (&["client server 15006 accept", "- server - drop"], "server", [false, false, false]),
    (&["- server 8080 drop"], "server", [false, false, true]),
    (&["- server 15001 drop", "- server 15006 drop"], "server", [true, true, true]),
    // Egress. The client's redirect to 15001 is before the node, which gets the connection of the proxy.
    (&["client server - drop"], "server", [false, false, false]),
    (&["client server - accept", "client - - drop"], "server", [true, true, true]),
    (&["client service - drop"], "service", [false, true, true]),
    (&["client server 8080 accept", "client - - drop"], "service", [false, true, false]),
];

/// Where the node's rules are.
#[derive(Debug, Clone, Copy)]
enum Hook {
    NftForward,
    IptablesForward,
    /// On the node's end of the client's link, as eBPF programs for traffic control.
    NetdevIngress,
}

#[test]
fn a_nodes_rules_judge_what_a_clients_proxy_connects_to_before_the_servers_redirect() -> Result<(), Failure> {
    let hooks = [Hook::NftForward, Hook::IptablesForward, Hook::NetdevIngress];
    let each = hooks.into_iter().flat_map(|hook| MEMBERS.map(|members| (hook, members)));
    let wrong = in_parallel(each.collect(), |(hook, members)| {
        let node = Node::new(members)?;
        let mut wrong = Vec::new();
        for (rules, to, passes) in POLICIES {
            node.namespace.run(|| sh(&hook.script(rules)))?;
            for family in [4, 6] {
                let expected = path(members, passes);
                let found = node.connect(family, to, &expected)?;
                if found != expected {
                    wrong.push(format!("{hook:?} {members:?} IPv{family} {rules:?} to {to}: {found:?}"));
                }
            }
        }
        Ok::<_, Failure>(wrong)
    });
    let wrong = wrong.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

/// The listeners that the application's connection reaches, one after the other.
fn path([client, server]: [Member; 2], passes: Passes) -> Vec<&'static str> {
    let (own_proxy, passes) = match (client, passes) {
        (Outside, [passes, _, _]) => (None, passes),
        (Sidecar(_), [_, passes, _]) | (Ambient, [_, _, passes]) => (Some("envoy:15001"), passes),
    };
    let behind_the_node: &[&str] = match server {
        _ if !passes => &["timeout"],
        Outside => &["app:8080"],
        Ambient if client == Ambient => &["envoy:15008", "app:8080"],
        Sidecar(_) | Ambient => &["envoy:15006", "app:8080"],
    };
    own_proxy.into_iter().chain(behind_the_node.iter().copied()).collect()
}

fn address(family: u8, name: &str) -> &'static str {
    match (family, name) {
        (4, "client") => "10.1.1.2",
        (4, "server") => "10.1.2.2",
        (4, "service") => "10.96.0.9",
        (_, "client") => "fd01:1::2",
        (_, "server") => "fd01:2::2",
        (_, _) => "fd01:96::9",
    }
}

impl Hook {
    /// Replaces the node's rules.
    fn script(self, rules: &[&str]) -> String {
        let rules = |separator: &str| {
            let each = rules.iter().flat_map(|rule| [4, 6].map(|family| self.rule(family, rule)));
            each.collect::<Vec<_>>().join(separator)
        };
        let nft = |table: &str, hook: &str| {
            let rules = rules("\n");
            format!(
                "nft -f - <<'END'\ntable {table} other {{ }}\ndelete table {table} other\ntable {table} other {{\n\
                 chain policies {{\ntype filter hook {hook} priority 0;\n{rules}\n}}\n}}\nEND"
            )
        };
        match self {
            Self::NftForward => nft("inet", "forward"),
            Self::NetdevIngress => nft("netdev", "ingress device \"client\""),
            Self::IptablesForward => {
                format!("iptables-legacy -F FORWARD; ip6tables-legacy -F FORWARD; {}", rules("; "))
            }
        }
    }

    fn rule(self, family: u8, rule: &str) -> String {
        let mut words = rule.split(' ');
        let [source, destination, port, verdict] = std::array::from_fn(|_| words.next().unwrap_or("-"));
        let (command, [from, to, dport, then], verdict) = match (self, family) {
            (Self::IptablesForward, _) => {
                let command = if family == 4 { "iptables-legacy" } else { "ip6tables-legacy" };
                (
                    format!("{command} -A FORWARD"),
                    ["-s", "-d", "-p tcp --dport", "-j"],
                    verdict.to_uppercase(),
                )
            }
            (_, 4) => (String::new(), ["ip saddr", "ip daddr", "tcp dport", ""], verdict.to_owned()),
            (_, _) => (String::new(), ["ip6 saddr", "ip6 daddr", "tcp dport", ""], verdict.to_owned()),
        };
        let host = |name: &str| if name == "-" { "-" } else { address(family, name) }.to_owned();
        let parts =
            [(from, host(source)), (to, host(destination)), (dport, port.to_owned()), (then, verdict)];
        let parts = parts.into_iter().filter(|(_, value)| value != "-");
        parts.fold(command, |line, (name, value)| format!("{line} {name} {value}"))
    }
}

impl Member {
    fn redirection(self) -> Option<Redirection> {
        match self {
            Outside => None,
            Sidecar(mode) => {
                let policy = RedirectPolicy { mode, ..RedirectPolicy::injected(Families::V4AndV6) };
                Some(Redirection::of(&policy))
            }
            Ambient => Some(Redirection::of_ambient(&AmbientPolicy::default())),
        }
    }

    /// The owner of the proxy's sockets.
    fn owner(self) -> Owner {
        Owner { uid: if self == Sidecar(Mode::Redirect) { 1337 } else { 0 }, gid: 1337 }
    }

    /// The mark of the proxy's sockets.
    fn mark(self) -> Option<u32> {
        (self == Ambient).then(|| ZTUNNEL_MARK.value())
    }

    /// The proxy's end of its connection to the application.
    fn source(self, client: IpAddr) -> SourceOptions {
        let (address, mark) = match (self, client) {
            (Sidecar(Mode::Redirect), IpAddr::V4(_)) => (PASSTHROUGH_V4.into(), None),
            (Sidecar(Mode::Redirect), IpAddr::V6(_)) => (PASSTHROUGH_V6.into(), None),
            (Sidecar(Mode::Tproxy { mark, .. }), _) => (client, Some(mark)),
            (Outside | Ambient, _) => (client, self.mark()),
        };
        SourceOptions { address: Some(address), mark, ..SourceOptions::default() }
    }
}

/// The network of one client and one server.
struct Node {
    // First, so that the listeners stop before their namespaces end.
    _listeners: Vec<Listeners>,
    namespace: Namespace,
    pods: Vec<Arc<Namespace>>,
    members: [Member; 2],
}

impl Node {
    fn new(members: [Member; 2]) -> Result<Self, Failure> {
        let namespace = Namespace::new()?;
        forward(&namespace, Families::V4AndV6)?;
        let (mut pods, mut listeners) = (Vec::new(), Vec::new());
        for (member, name, net) in [(members[0], "client", 1), (members[1], "server", 2)] {
            let pod = Arc::new(Namespace::new()?);
            let end = |namespace, name, host| -> Result<LinkEnd<'_>, Failure> {
                let addresses = [format!("10.1.{net}.{host}/24"), format!("fd01:{net}::{host}/64")];
                let addresses = addresses.iter().map(|address| address.parse()).collect::<Result<_, _>>()?;
                Ok(LinkEnd { namespace, name: InterfaceName::parse(name)?, addresses })
            };
            let mut inside = end(&pod, "eth0", 2)?;
            if name == "server" {
                let service = |family| address(family, "service").parse::<IpAddr>();
                inside.addresses.extend([service(4)?, service(6)?].map(IpNet::from));
            }
            join(&end(&namespace, name, 1)?, &inside)?;
            route(&pod, "0.0.0.0/0".parse()?, NextHop::Via(format!("10.1.{net}.1").parse()?))?;
            route(&pod, "::/0".parse()?, NextHop::Via(format!("fd01:{net}::1").parse()?))?;
            let app = listening(PORT, ListenAddress::Any);
            listeners.push(Listeners::start(&pod, APP, ServerName::NameAndPort("app"), vec![app])?);
            if let Some(redirection) = member.redirection() {
                pod.run(|| redirection.apply(&Nft))??;
                let (owner, mark) = (member.owner(), member.mark().unwrap_or(0));
                let ports = [15001, 15006, 15008].map(|port| listening(port, ListenAddress::Transparent));
                let name = ServerName::NameAndPort("envoy");
                listeners.push(Listeners::start_marked(&pod, owner, mark, name, ports.to_vec())?);
            }
            pods.push(pod);
        }
        for family in [4, 6] {
            let service = IpNet::from(address(family, "service").parse::<IpAddr>()?);
            route(&namespace, service, NextHop::Via(address(family, "server").parse()?))?;
        }
        Ok(Self { _listeners: listeners, namespace, pods, members })
    }

    /// Connects as the client's application, and on from each proxy as that proxy does. Returns the listeners reached.
    fn connect(&self, family: u8, to: &str, expected: &[&str]) -> Result<Vec<String>, Failure> {
        let ip = |name| address(family, name).parse::<IpAddr>();
        let (client, server) = (ip("client")?, ip("server")?);
        let call = |owner, to, source| Client { owner, transport: Transport::Tcp, to, source };
        let mut pod = &self.pods[0];
        let mut next = call(APP, SocketAddr::new(ip(to)?, PORT), SourceOptions::default());
        let mut path = Vec::new();
        loop {
            let is_unanswered = expected.get(path.len()) == Some(&"timeout");
            let outcome = next.connect(pod, if is_unanswered { NO_ANSWER_WITHIN } else { PATIENCE })?;
            let ConnectionOutcome::Replied(reply) = outcome else {
                path.push(outcome.to_string());
                return Ok(path);
            };
            let original = || reply.original.ok_or_else(|| Failure::new("no original destination"));
            let member = self.members[usize::from(reply.by != "envoy:15001")];
            let (to, source) = match reply.by.as_str() {
                "envoy:15001" => {
                    let port = if member == Ambient { 15008 } else { original()?.port() };
                    let source = SourceOptions { mark: member.mark(), ..SourceOptions::default() };
                    (SocketAddr::new(server, port), source)
                }
                "envoy:15006" => (original()?, member.source(client)),
                "envoy:15008" => (SocketAddr::new(server, PORT), member.source(client)),
                _ => {
                    path.push(reply.by);
                    return Ok(path);
                }
            };
            pod = &self.pods[usize::from(reply.by != "envoy:15001")];
            next = call(member.owner(), to, source);
            path.push(reply.by);
        }
    }
}

fn listening(port: u16, address: ListenAddress) -> ListeningPort {
    ListeningPort { transport: Transport::Tcp, port, address }
}
