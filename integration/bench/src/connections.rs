//! Processor time of the client's thread for a connection over a veth pair between two namespaces, established and
//! reset.
//!
//! The kernel processes a packet in both namespaces mostly on the thread that sent it, so the client's time includes
//! the pod's rules in either direction.

use crate::measures::{Sample, in_turn, processor_time};
use crate::policies::{rule_per_value, with_exclusions};
use crate::report::{Limit, Report, Table, Target, cells};
use gybe_demo::testnet::namespace::{LinkEnd, Namespace, join};
use gybe_integration::failure::Failure;
use gybe_netfilter::apply::apply;
use gybe_netfilter::compile::compile;
use gybe_netfilter::iptables::Iptables;
use gybe_netfilter::model::policy::InterfaceName;
use gybe_netfilter::model::ruleset::Engine;
use gybe_netfilter::nft::Nft;
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Numbers of excluded ports and networks.
const COUNTS: [usize; 4] = [0, 1, 100, 1000];

/// # Errors
/// When the namespaces cannot be set up, or a connection does not reach the expected listener.
pub fn measure(rounds: usize) -> Result<Report, Failure> {
    let mut links = vec![PodLink::build(RuleForm::None, 0)?];
    for form in [RuleForm::Sets, RuleForm::Legacy, RuleForm::RulePerValue] {
        for count in COUNTS {
            links.push(PodLink::build(form, count)?);
        }
    }
    let samples = in_turn(rounds, &links, |link| {
        Ok::<_, Failure>([link.cost(Direction::Inbound)?, link.cost(Direction::Outbound)?])
    })?;
    let rows: Vec<Row<'_>> =
        links.iter().zip(&samples).map(|(link, samples)| Row { link, samples }).collect();
    Ok(report(&rows))
}

struct Row<'a> {
    link: &'a PodLink,
    /// Inbound, outbound.
    samples: &'a [Sample; 2],
}

fn report(rows: &[Row<'_>]) -> Report {
    let samples_of =
        |count| rows.iter().find(|row| row.link.is(RuleForm::Sets, count)).map(|row| row.samples);
    let medians = |samples: &[Sample; 2]| samples.each_ref().map(Sample::median);
    let default = samples_of(0).map_or([f64::NAN; 2], medians);
    let longest = samples_of(1000).map_or([f64::NAN; 2], medians);
    let row = |row: &Row<'_>| {
        let [inbound, outbound] = row.samples;
        let ratio = |sample: &Sample, default| format!("{:.2}", sample.median() / default);
        let (inbound_ratio, outbound_ratio) = (ratio(inbound, default[0]), ratio(outbound, default[1]));
        let excluded = row.link.excluded().to_string();
        vec![
            row.link.name().into(),
            excluded,
            inbound.to_string(),
            inbound_ratio,
            outbound.to_string(),
            outbound_ratio,
        ]
    };
    let table = Table {
        title: "Client processor time per connection".into(),
        head: cells([
            "Rules",
            "excluded",
            "inbound µs (quartiles)",
            "x default",
            "outbound µs (quartiles)",
            "x default",
        ]),
        rows: rows.iter().map(row).collect(),
    };
    let target = |direction: &str, longest: f64, default: f64| Target {
        what: format!(
            "{direction} connection with 1000 excluded ports and networks, against the default policy"
        ),
        measured: longest / default,
        limit: Limit::AtMost(1.1),
        unit: "x",
    };
    let targets = vec![target("inbound", longest[0], default[0]), target("outbound", longest[1], default[1])];
    Report { tables: vec![table], targets }
}

const POD: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 10);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 1);
/// The port of the application on either side.
const APP: u16 = 8080;

/// Connections that are made before they are accepted; a listener's queue holds more.
const BATCH: u32 = 50;
/// Batches in a measurement.
const BATCHES: u32 = 8;

/// The form of the pod's rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RuleForm {
    /// The pod has no rules.
    None,
    /// Gybe's nftables rules: a set for each list.
    Sets,
    /// Gybe's rules in iptables-legacy.
    Legacy,
    /// nftables rules without sets: a rule for each value.
    RulePerValue,
}

/// The direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// From the peer to the pod's application; with rules it ends at port 15006.
    Inbound,
    /// From the pod to the peer's application; with rules it ends at the pod's port 15001.
    Outbound,
}

/// A pod with rules, and its peer.
#[derive(Debug)]
struct PodLink {
    pod: Namespace,
    peer: Namespace,
    form: RuleForm,
    excluded: usize,
    inbound: TcpListener,
    outbound: TcpListener,
}

impl PodLink {
    /// Sets up a pod with the default rules and that many excluded ports and networks.
    fn build(form: RuleForm, excluded: usize) -> Result<Self, Failure> {
        let (pod, peer) = (Namespace::new()?, Namespace::new()?);
        let end = |namespace, address| {
            let addresses = vec![ipnet::IpNet::new(address, 24)?];
            Ok::<_, Failure>(LinkEnd { namespace, name: InterfaceName::parse("eth0")?, addresses })
        };
        join(&end(&pod, POD.into())?, &end(&peer, PEER.into())?)?;
        pod.run(|| write(form, excluded))??;
        let listener = |namespace: &Namespace, port| {
            let listening = namespace.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))??;
            listening.set_nonblocking(true)?;
            Ok::<_, Failure>(listening)
        };
        let (inbound, outbound) = match form {
            RuleForm::None => (listener(&pod, APP)?, listener(&peer, APP)?),
            _ => (listener(&pod, 15006)?, listener(&pod, 15001)?),
        };
        Ok(Self { pod, peer, form, excluded, inbound, outbound })
    }

    fn is(&self, form: RuleForm, excluded: usize) -> bool {
        (self.form, self.excluded) == (form, excluded)
    }

    fn name(&self) -> &'static str {
        match self.form {
            RuleForm::None => "none",
            RuleForm::Sets => "Gybe, nft",
            RuleForm::Legacy => "Gybe, iptables-legacy",
            RuleForm::RulePerValue => "nft, a rule for each value",
        }
    }

    fn excluded(&self) -> usize {
        self.excluded
    }

    /// Measures the client's processor time for one connection, in microseconds.
    fn cost(&self, direction: Direction) -> Result<f64, Failure> {
        let (client, listener, to) = match direction {
            Direction::Inbound => (&self.peer, &self.inbound, SocketAddr::from((POD, APP))),
            Direction::Outbound => (&self.pod, &self.outbound, SocketAddr::from((PEER, APP))),
        };
        let elapsed =
            client.run(|| (0..BATCHES).map(|_| batch(to, listener)).sum::<Result<Duration, Failure>>())??;
        Ok(elapsed.as_secs_f64() * 1e6 / f64::from(BATCH * BATCHES))
    }
}

fn write(form: RuleForm, excluded: usize) -> Result<(), Failure> {
    let rules = compile(&with_exclusions(excluded)?);
    let _previous = match form {
        RuleForm::None => return Ok(()),
        RuleForm::Sets => apply(&Nft, &rules)?,
        RuleForm::Legacy => apply(&Iptables::find(Engine::Legacy)?, &rules)?,
        RuleForm::RulePerValue => apply(&Nft, &rule_per_value(&rules))?,
    };
    // Conntrack removes reset connections after one second instead of ten, so that its table does not grow.
    Ok(std::fs::write("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close", "1")?)
}

/// Measures a batch of connections, then checks that the listener received them.
fn batch(to: SocketAddr, listener: &TcpListener) -> Result<Duration, Failure> {
    let begun = processor_time()?;
    for _ in 0..BATCH {
        let stream = TcpStream::connect(to)?;
        // Closed by a reset: no port stays in TIME_WAIT.
        setsockopt(&stream, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 })?;
    }
    let elapsed = processor_time()?.saturating_sub(begun);
    for _ in 0..BATCH {
        match listener.accept() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Err(Failure::new(format!("the listener did not receive a connection to {to}")));
            }
            accepted => drop(accepted?),
        }
    }
    Ok(elapsed)
}
