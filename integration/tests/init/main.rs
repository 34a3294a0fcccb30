//! `gybe init` and `gybe validate` as a pod's init containers call them, in network namespaces.

#![cfg(test)]

mod arguments;
mod validation;

use gybe_demo::testnet::client::{Client, SourceOptions};
use gybe_demo::testnet::listener::{ListenAddress, Listeners, ListeningPort, ServerName};
use gybe_demo::testnet::namespace::{LinkEnd, Namespace, NextHop, join, route};
use gybe_demo::testnet::outcome::ConnectionOutcome;
use gybe_integration::programs::{Run, ours, path_of_ours, run};
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::policy::InterfaceName;
use gybe_netfilter::model::ruleset::Transport;
use std::sync::Arc;
use std::time::Duration;

/// The injector's arguments for a pod without annotations.
pub(crate) const INJECTED: &str = "-p 15001 -z 15006 -u 1337 -m REDIRECT -i * -x '' -b * -d 15090,15021,15020 --log_output_level=default:info";

pub(crate) const PROXY: Owner = Owner { uid: 1337, gid: 1337 };
pub(crate) const APP: Owner = Owner { uid: 1000, gid: 1000 };

/// A pod's namespace with eth0, linked to its peer's.
pub(crate) struct Pod {
    pub(crate) inside: Arc<Namespace>,
    peer: Arc<Namespace>,
}

impl Pod {
    /// A pod with IPv4 only.
    pub(crate) fn new() -> Self {
        Self::with_addresses("10.244.0.10/24", "10.244.0.1/24")
    }

    pub(crate) fn with_addresses(own: &str, peers: &str) -> Self {
        let (inside, peer) = (Arc::new(Namespace::new().unwrap()), Arc::new(Namespace::new().unwrap()));
        let end = |namespace, addresses: &str| LinkEnd {
            namespace,
            name: InterfaceName::parse("eth0").unwrap(),
            addresses: addresses.split(' ').map(|address| address.parse().unwrap()).collect(),
        };
        join(&end(&inside, own), &end(&peer, peers)).unwrap();
        for address in peers.split(' ') {
            let gateway = address.split_once('/').unwrap().0.parse::<std::net::IpAddr>().unwrap();
            let world = if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
            route(&inside, world.parse().unwrap(), NextHop::Via(gateway)).unwrap();
        }
        Self { inside, peer }
    }

    /// Runs the program with these arguments in the pod; `''` is an empty one.
    pub(crate) fn gybe(&self, line: &str) -> Run {
        let words = words(line);
        self.inside.run(|| ours("gybe", &words, "")).unwrap().unwrap()
    }

    /// Runs a shell script in the pod; `$GYBE` is the program and `"$@"` the arguments.
    pub(crate) fn script(&self, script: &str, line: &str) -> Run {
        let gybe = format!("GYBE={}", path_of_ours("gybe").unwrap().display());
        let head = [gybe.as_str(), "sh", "-euc", script, "container"];
        let all: Vec<&str> = head.into_iter().chain(words(line)).collect();
        self.inside.run(|| run("env", &all, "")).unwrap().unwrap()
    }

    /// Runs the program as a user without any privilege. It is executed through an open file, because such a user
    /// may have no access to the build directory.
    pub(crate) fn gybe_as(&self, uid: u32, line: &str) -> Run {
        let script = format!(
            "exec 3< \"$GYBE\"; exec setpriv --reuid {uid} --regid {uid} --clear-groups --inh-caps=-all \
             --bounding-set=-all /proc/self/fd/3 \"$@\""
        );
        self.script(&script, line)
    }

    /// Runs the program and requires success without messages.
    pub(crate) fn succeed(&self, line: &str) -> String {
        let run = self.gybe(line);
        assert_eq!((run.code, run.err.as_str()), (Some(0), ""), "{line}: {}", run.out);
        run.out
    }

    /// Requires that the pod's rules are exactly those of this policy.
    pub(crate) fn assert_rules_of(&self, policy: &str) {
        let netns = self.inside.path().to_string_lossy().into_owned();
        let verify = ours("gybe", &["verify", "--netns", &netns, "--policy", "-"], policy).unwrap();
        assert_eq!(verify.code, Some(0), "{policy}: {}{}", verify.out, verify.err);
    }

    /// Runs another program in the pod, requires success and returns its output.
    pub(crate) fn run_program(&self, line: &str) -> String {
        let words = words(line);
        let (program, arguments) = words.split_first().unwrap();
        let run = self.inside.run(|| run(program, arguments, "")).unwrap().unwrap();
        assert_eq!(run.code, Some(0), "{line}: {}", run.err);
        run.out
    }

    pub(crate) fn rules(&self) -> String {
        self.run_program("nft list ruleset")
    }

    /// Listens on these ports of the pod until the value is dropped.
    pub(crate) fn listen(&self, owner: Owner, name: &'static str, ports: &[u16]) -> Listeners {
        let service = |port: &u16| ListeningPort {
            transport: Transport::Tcp,
            port: *port,
            address: ListenAddress::Any,
        };
        let services = ports.iter().map(service).collect();
        Listeners::start(&self.inside, owner, ServerName::NameAndPort(name), services).unwrap()
    }

    /// Connects as the application and returns the outcome.
    pub(crate) fn connect_from_app(&self, to: &str) -> String {
        connect(&self.inside, to).to_string()
    }

    /// Connects to the pod from its peer and returns the outcome.
    pub(crate) fn connect_from_peer(&self, to: &str) -> String {
        connect(&self.peer, to).to_string()
    }
}

fn connect(from: &Namespace, to: &str) -> ConnectionOutcome {
    let to = to.parse().unwrap();
    let client = Client { owner: APP, transport: Transport::Tcp, to, source: SourceOptions::default() };
    client.connect(from, Duration::from_secs(20)).unwrap()
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().map(|word| if word == "''" { "" } else { word }).collect()
}
