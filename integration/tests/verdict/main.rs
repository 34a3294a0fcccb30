//! The outcomes of a pod's connections with rules of other owners in its namespace: predicted from the rules that are
//! read back, judged by `gybe verify`, and shown by real connections.

#![cfg(test)]

mod bpf;
mod delivery;
mod ebpf;
mod effects;
mod hidden_rules;
mod other_owners;
mod predicted;
mod random_namespaces;
mod statements;

use gybe_demo::testnet::outcome::ConnectionOutcome;
use gybe_integration::failure::Failure;
use gybe_integration::flow_check::make;
use gybe_integration::predict::{in_the_pod, trace_flow};
use gybe_integration::programs::{patient, run};
use gybe_integration::topology::Topology;
use gybe_integration::vectors::{self, Flow, Location};
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::apply::redirection::Redirection;
use gybe_netfilter::compile::compile;
use gybe_netfilter::inspect::live::{LiveRules, LiveTrace, Outcome};
use gybe_netfilter::inspect::verdict::{Desired, NamespaceVerdict, VerdictContext, judge_namespace};
use gybe_netfilter::model::policy::RedirectPolicy;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::LazyLock;
use std::time::Duration;

/// How long an answer may take on a busy machine.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// How long the test waits for an answer to a connection that is predicted to get none.
const UNANSWERED_FOR: Duration = Duration::from_secs(1);

/// The recorded names of one connection of every kind that the default policy distinguishes.
const KINDS: [&str; 12] = [
    "v4.app->ext:80",
    "v4.app->ext:9000",
    "v4.app->lo:8080",
    "v4.app->ownip:8080",
    "v4.envoy->ext:80",
    "v4.envoy->ownip:8080",
    "v4.app->dns:53udp",
    "v4.in:8080",
    "v4.in:15008",
    "v4.in:8080udp",
    "v6.app->ext:80",
    "v6.in:8080",
];

pub(crate) struct RedirectedPod {
    pub(crate) topology: Topology,
    pub(crate) policy: RedirectPolicy,
    pub(crate) flows: Vec<Flow>,
    /// A query that some policies redirect. Without a redirection it needs neighbour discovery, which no rule is
    /// evaluated for.
    pub(crate) query_v6: Flow,
}

impl RedirectedPod {
    /// Creates a pod of the default policy whose rules are written by the backend `kind`.
    pub(crate) fn redirected_by(kind: BackendKind) -> Result<Self, Failure> {
        Self::of("inject-default-dual", kind)
    }

    /// Creates a pod of a recorded policy.
    pub(crate) fn of(policy: &str, kind: BackendKind) -> Result<Self, Failure> {
        /// Reading them takes longer than a verdict.
        static VECTORS: LazyLock<Vec<vectors::Vector>> = LazyLock::new(|| vectors::all().unwrap());
        let vector = VECTORS.iter().find(|vector| vector.name == policy).unwrap().clone();
        let topology = Topology::new(vector.policy.mode, &vector.flows)?;
        let (redirection, backend) = (Redirection::of(&vector.policy), patient(kind)?);
        topology.at(Location::Pod).run(|| redirection.apply(&*backend))??;
        let query_v6 = vector.flows.iter().find(|flow| flow.id == "v6.app->dns:53udp").unwrap().clone();
        let flows: Vec<Flow> =
            vector.flows.into_iter().filter(|flow| KINDS.contains(&flow.id.as_str())).collect();
        assert_eq!(flows.len(), KINDS.len());
        Ok(Self { topology, policy: vector.policy, flows, query_v6 })
    }

    /// Runs a line of commands in the pod, as an owner of other rules would.
    pub(crate) fn run_as_other_owner(&self, script: &str) -> Result<(), Failure> {
        self.output_as_other_owner(script).map(drop)
    }

    /// As [`Self::run_as_other_owner`]; returns what the commands print.
    pub(crate) fn output_as_other_owner(&self, script: &str) -> Result<String, Failure> {
        // A plain user may not write the file that iptables-legacy locks otherwise.
        let with_lock = format!("export XTABLES_LOCKFILE=/proc/self/ns/net\n{script}");
        let done = self.topology.at(Location::Pod).run(|| run("sh", &["-ec", &with_lock], ""))??;
        if done.code == Some(0) { Ok(done.out) } else { Err(Failure::new(format!("{script}: {}", done.err))) }
    }

    pub(crate) fn live(&self) -> Result<LiveRules, Failure> {
        Ok(self.topology.at(Location::Pod).run(LiveRules::read)??.with_proxy_of(&self.policy))
    }

    pub(crate) fn verdict(&self) -> Result<NamespaceVerdict, Failure> {
        let reading = VerdictContext { only: None, whole: &BackendKind::ALL, programs: None };
        let judge = || judge_namespace(Desired::Policy(&self.policy), reading);
        Ok(self.topology.at(Location::Pod).run(judge)??)
    }

    /// Makes a connection that the policy redirects; returns a message if the proxy does not answer, or if the trace of
    /// the live rules has another outcome. `None` for a connection that the policy leaves alone.
    pub(crate) fn is_missed(&self, live: &LiveRules, flow: &Flow) -> Result<Option<Option<String>>, Failure> {
        let desired = trace_flow(&in_the_pod(&compile(&self.policy))?, flow)?.first;
        if !matches!(desired, Outcome::Redirected(_) | Outcome::Intercepted(_)) {
            return Ok(None);
        }
        let traced = live.trace(&flow.packet()?);
        let (is_desired, outcome) = (traced.outcome == desired, traced.outcome);
        let proxy = expected(flow, &LiveTrace { outcome: desired, ..traced }).flatten();
        let found = make(&self.topology, flow, ANSWERED_WITHIN)?;
        let by = match &found {
            ConnectionOutcome::Replied(answer) => Some(answer.by.clone()),
            _ => None,
        };
        let sentence = || format!("{}: {found}, traced {outcome:?} instead of {desired:?}", flow.id);
        Ok(Some((by != proxy || !is_desired).then(sentence)))
    }

    pub(crate) fn flow(&self, id: &str) -> &Flow {
        self.flows.iter().find(|flow| flow.id == id).unwrap()
    }

    /// Makes the connection; returns a message if its outcome is not the one predicted from the rules.
    pub(crate) fn disagreement(&self, live: &LiveRules, flow: &Flow) -> Result<Option<String>, Failure> {
        let predicted = live.trace(&flow.packet()?);
        let Some(expected) = expected(flow, &predicted) else { return Ok(None) };
        let patience = if expected.is_some() { ANSWERED_WITHIN } else { UNANSWERED_FOR };
        let found = make(&self.topology, flow, patience)?;
        let by = match &found {
            ConnectionOutcome::Replied(answer) => Some(answer.by.clone()),
            // Also how a packet may be dropped: `reject`.
            ConnectionOutcome::Refused if predicted.outcome == Outcome::Dropped => None,
            ConnectionOutcome::Refused => Some("refused".to_owned()),
            ConnectionOutcome::Timeout | ConnectionOutcome::Failed(_) => None,
        };
        let rule = predicted.decided_by.map(|step| step.to_string()).unwrap_or_default();
        let sentence = || format!("{}: {found}, predicted {:?} by {rule}", flow.id, predicted.outcome);
        Ok((by != expected).then(sentence))
    }
}

/// The listener that answers a connection of this outcome: `Some(None)` for no answer, `None` when that
/// is not known.
fn expected(flow: &Flow, predicted: &LiveTrace) -> Option<Option<String>> {
    let loopback: IpAddr = match flow.to {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let outcome = match predicted.outcome {
        Outcome::Untouched => flow.outcome_without_rules(),
        Outcome::Redirected(port) | Outcome::Intercepted(port) => {
            flow.in_the_pod(SocketAddr::new(loopback, port.get()))
        }
        Outcome::Dropped | Outcome::RepliesLost => return Some(None),
        Outcome::Translated(_) | Outcome::Unknown => return None,
    };
    Some(match outcome {
        ConnectionOutcome::Replied(answer) => Some(answer.by),
        ConnectionOutcome::Refused => Some("refused".to_owned()),
        ConnectionOutcome::Timeout | ConnectionOutcome::Failed(_) => None,
    })
}
