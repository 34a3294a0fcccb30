//! A pod and its peer, a veth pair between them, and connections from either to the other.

use crate::policies::{a_rule_per_value, with_exclusions};
use crate::sample::processor_time;
use gybe_installer::testnet::link::{LinkEnd, join};
use gybe_installer::testnet::namespace::Namespace;
use gybe_integration::failure::Failure;
use gybe_netfilter::apply::apply;
use gybe_netfilter::compile::compile;
use gybe_netfilter::iptables::{Iptables, Variant};
use gybe_netfilter::nft::Nft;
use gybe_netfilter::policy::InterfaceName;
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

const POD: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 10);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 1);
/// Where the application listens, on either side.
const APP: u16 = 8080;

/// So many connections are made before they are accepted: fewer than a listener keeps waiting.
const BATCH: u32 = 50;
/// So many batches are one measurement.
const BATCHES: u32 = 8;

/// Who wrote the pod's rules, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// Nobody: the pod has no rules.
    Nothing,
    /// We: a set for each list.
    Sets,
    /// iptables-legacy.
    Legacy,
    /// Somebody who knows no sets: a rule of nftables for each value.
    RulePerValue,
}

/// Which way a connection goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// From the peer to the pod's application; with rules it ends at port 15006.
    Inbound,
    /// From the pod to the peer's application; with rules it ends at the pod's port 15001.
    Outbound,
}

/// A pod under some rules, and its peer.
#[derive(Debug)]
pub(super) struct Street {
    pod: Namespace,
    peer: Namespace,
    written: Written,
    excluded: usize,
    inbound: TcpListener,
    outbound: TcpListener,
}

impl Street {
    /// Builds one whose pod has the default rules with that many excluded ports and networks.
    pub(super) fn build(written: Written, excluded: usize) -> Result<Self, Failure> {
        let (pod, peer) = (Namespace::new()?, Namespace::new()?);
        let end = |namespace, address| {
            let addresses = vec![ipnet::IpNet::new(address, 24)?];
            Ok::<_, Failure>(LinkEnd { namespace, name: InterfaceName::parse("eth0")?, addresses })
        };
        join(&end(&pod, POD.into())?, &end(&peer, PEER.into())?)?;
        pod.run(|| write(written, excluded))??;
        let listener = |namespace: &Namespace, port| {
            let listening = namespace.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))??;
            listening.set_nonblocking(true)?;
            Ok::<_, Failure>(listening)
        };
        let (inbound, outbound) = match written {
            Written::Nothing => (listener(&pod, APP)?, listener(&peer, APP)?),
            _ => (listener(&pod, 15006)?, listener(&pod, 15001)?),
        };
        Ok(Self { pod, peer, written, excluded, inbound, outbound })
    }

    pub(super) fn is(&self, written: Written, excluded: usize) -> bool {
        (self.written, self.excluded) == (written, excluded)
    }

    pub(super) fn name(&self) -> &'static str {
        match self.written {
            Written::Nothing => "none",
            Written::Sets => "Gybe, nft",
            Written::Legacy => "Gybe, iptables-legacy",
            Written::RulePerValue => "nft, a rule for each value",
        }
    }

    pub(super) fn excluded(&self) -> usize {
        self.excluded
    }

    /// Processor time of the client for one connection, in microseconds.
    pub(super) fn cost(&self, way: Way) -> Result<f64, Failure> {
        let (client, listener, to) = match way {
            Way::Inbound => (&self.peer, &self.inbound, SocketAddr::from((POD, APP))),
            Way::Outbound => (&self.pod, &self.outbound, SocketAddr::from((PEER, APP))),
        };
        let spent =
            client.run(|| (0..BATCHES).map(|_| batch(to, listener)).sum::<Result<Duration, Failure>>())??;
        Ok(spent.as_secs_f64() * 1e6 / f64::from(BATCH * BATCHES))
    }
}

fn write(written: Written, excluded: usize) -> Result<(), Failure> {
    let rules = compile(&with_exclusions(excluded)?);
    let _what_was_there = match written {
        Written::Nothing => return Ok(()),
        Written::Sets => apply(&Nft, &rules)?,
        Written::Legacy => apply(&Iptables::find(Variant::Legacy)?, &rules)?,
        Written::RulePerValue => apply(&Nft, &a_rule_per_value(&rules))?,
    };
    // What was reset is forgotten after a second instead of ten, so that no table grows meanwhile.
    Ok(std::fs::write("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close", "1")?)
}

/// Makes a batch of connections; that they arrived is looked at when the clock has stopped.
fn batch(to: SocketAddr, listener: &TcpListener) -> Result<Duration, Failure> {
    let begun = processor_time()?;
    for _ in 0..BATCH {
        let stream = TcpStream::connect(to)?;
        // Closed by a reset: nothing waits, and no port stays taken.
        setsockopt(&stream, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 })?;
    }
    let spent = processor_time()?.saturating_sub(begun);
    for _ in 0..BATCH {
        match listener.accept() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Err(Failure::new(format!("a connection to {to} went elsewhere")));
            }
            accepted => drop(accepted?),
        }
    }
    Ok(spent)
}
