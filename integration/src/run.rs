//! Makes the recorded connections, one after the other, and tells where the fates differ.

use crate::topology::Topology;
use crate::vectors::Flow;
use gybe_installer::demo::caller::{Call, CallError, Disguise};
use gybe_installer::demo::fate::Fate;
use std::fmt;
use std::thread;
use std::time::Duration;

/// How long a connection that should be answered may take. They take less than a millisecond; a
/// busy machine may need more, and patience costs nothing when all is well.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// How long a connection that should not be answered is given to be answered all the same.
const UNANSWERED_FOR: Duration = Duration::from_secs(1);

/// Below the kernel's own range (`ip_local_port_range`, from 32768), so that connections made at
/// the same time never choose the same.
const OWN_PORTS: u16 = 20000;

/// A connection that did not end as it should.
#[derive(Debug, Clone)]
pub struct Difference {
    /// Which.
    pub id: String,
    /// What should have become of it.
    pub wanted: Fate,
    /// What did.
    pub found: Fate,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} instead of {}", self.id, self.found, self.wanted)
    }
}

/// With the rules, or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// The pod has the rules of its policy.
    There,
    /// It has none.
    NotThere,
}

impl Flow {
    /// What should become of it.
    pub fn wanted(&self, rules: Rules) -> &Fate {
        match rules {
            Rules::There => &self.with_rules,
            Rules::NotThere => &self.without_rules,
        }
    }
}

/// When to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// When every connection was made.
    TheEnd,
    /// When one has ended otherwise than recorded.
    ADifference,
}

/// Makes the connections of `flows` and returns those whose fate is not the recorded one.
///
/// They are made in order, because a few share one five-tuple. Those that nobody should answer are
/// waited for beside the others.
///
/// # Errors
/// When a connection could not be made as it was recorded.
pub fn differences(
    topology: &Topology,
    flows: &[Flow],
    rules: Rules,
    until: Until,
) -> Result<Vec<Difference>, CallError> {
    let silent = |flow: &&Flow| *flow.wanted(rules) == Fate::Timeout;
    thread::scope(|scope| {
        let waiting: Vec<_> = flows
            .iter()
            .filter(silent)
            .zip(OWN_PORTS..)
            .map(|(flow, port)| scope.spawn(move || check(topology, flow, rules, Some(port))))
            .collect();
        let mut found = Vec::new();
        for flow in flows.iter().filter(|flow| !silent(flow)) {
            found.extend(check(topology, flow, rules, None)?);
            if until == Until::ADifference && !found.is_empty() {
                break;
            }
        }
        for thread in waiting {
            found.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(found)
    })
}

fn check(
    topology: &Topology,
    flow: &Flow,
    rules: Rules,
    port: Option<u16>,
) -> Result<Option<Difference>, CallError> {
    let wanted = flow.wanted(rules);
    let patience = if *wanted == Fate::Timeout { UNANSWERED_FOR } else { ANSWERED_WITHIN };
    let found = call(flow, port).make(topology.at(flow.from), patience)?;
    let difference = Difference { id: flow.id.clone(), wanted: wanted.clone(), found };
    Ok((!flow.agrees(wanted, &difference.found)).then_some(difference))
}

fn call(flow: &Flow, port: Option<u16>) -> Call {
    let disguise = Disguise { source: flow.source, source_port: flow.source_port.or(port), mark: flow.mark };
    Call { owner: flow.owner, transport: flow.transport, to: flow.to, disguise }
}

impl Flow {
    /// Is it the same fate?
    ///
    /// Who answered, and where he thinks the connection comes from, must be the same. So must the
    /// original destination, with one exception: for a connection that the rules left alone, it is
    /// there or not depending on whether connection tracking happens to be on for its family, which
    /// no rule of ours decides. It must then be where the caller went.
    fn agrees(&self, wanted: &Fate, found: &Fate) -> bool {
        let (Fate::Answered(wanted), Fate::Answered(found)) = (wanted, found) else {
            return wanted == found;
        };
        let left_alone = matches!(&self.without_rules, Fate::Answered(answer) if answer.by == wanted.by);
        let same_target = if left_alone {
            found.original.is_none_or(|original| original == self.to)
        } else {
            found.original == wanted.original
        };
        found.by == wanted.by && found.source == wanted.source && same_target
    }
}
