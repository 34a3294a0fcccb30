//! The pod's traffic annotations as values: each parsed once, and the text then dropped.
//!
//! Every rule of docs/ISTIO.md, section 4. How one list is read is in
//! `annotations/lists.rs`, which names are likely misspelt in `annotations/unknown.rs`; what the values
//! mean together is in `decide`.

mod lists;
mod unknown;

pub(crate) use unknown::nearest;
pub use unknown::unknown;

use crate::conf::MaxIntervals;
use crate::pod::PodFacts;
use gybe_netfilter::policy::istio::{PROXY_PORTS, TELEMETRY_PORT};
use gybe_netfilter::policy::{CidrSet, Destinations, InterfaceName, PortRange, PortSet};
use lists::Fault;
use std::collections::BTreeSet;

/// How the pod wants to be intercepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interception {
    /// By destination NAT.
    Redirect,
    /// By transparent sockets.
    Tproxy,
    /// Not at all: Istio's injector writes this for pods that opted out.
    None,
}

/// What the pod says about its inbound ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InboundPorts {
    /// Nothing: the operator's default holds.
    Unsaid,
    /// Every port (`*`).
    All,
    /// These.
    Only(PortSet),
}

/// What a pod's annotations say about its traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traffic {
    /// By which means.
    pub interception: Interception,
    /// Outbound networks that are captured.
    pub included_to: Destinations,
    /// Outbound networks that are left alone.
    pub excluded_to: CidrSet,
    /// Inbound ports that are captured.
    pub included_inbound: InboundPorts,
    /// Inbound ports that are left alone when all are captured; Istio's own are among them.
    pub excluded_inbound: PortSet,
    /// Outbound ports that are captured wherever they go.
    pub included_outbound: PortSet,
    /// Outbound ports that are left alone.
    pub excluded_outbound: PortSet,
    /// Interfaces neither of whose directions is captured.
    pub excluded_interfaces: BTreeSet<InterfaceName>,
    /// Interfaces behind which virtual machines live.
    pub virtual_interfaces: BTreeSet<InterfaceName>,
}

/// Annotations with values that cannot be meant. All are named, and the first is explained: the message
/// of a failed ADD has room for no more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("annotation {annotation}: {fault}{}", named(also))]
pub struct AnnotationError {
    /// The first one's full name.
    pub annotation: &'static str,
    /// What is wrong with it, and what would be right.
    fault: Fault,
    /// The others' names.
    also: Vec<&'static str>,
}

fn named(also: &[&'static str]) -> String {
    let short = |name: &'static str| name.rsplit('/').next().unwrap_or(name);
    match also {
        [] => String::new(),
        also => format!("; also wrong: {}", also.iter().copied().map(short).collect::<Vec<_>>().join(", ")),
    }
}

impl AnnotationError {
    fn of(annotation: &'static str, fault: Fault) -> Self {
        Self { annotation, fault, also: Vec::new() }
    }
}

/// The faults of a pod's annotations so far.
#[derive(Default)]
struct Faults(Option<AnnotationError>);

impl Faults {
    /// What was read, or `instead` of it, and the fault kept.
    fn keep<T>(&mut self, read: Result<T, AnnotationError>, instead: T) -> T {
        read.unwrap_or_else(|fault| {
            match &mut self.0 {
                Some(first) => first.also.push(fault.annotation),
                none => *none = Some(fault),
            }
            instead
        })
    }
}

/// How the pod wants to be intercepted.
pub(crate) const MODE: &str = "sidecar.istio.io/interceptionMode";
const INCLUDE_TO: &str = "traffic.sidecar.istio.io/includeOutboundIPRanges";
const EXCLUDE_TO: &str = "traffic.sidecar.istio.io/excludeOutboundIPRanges";
const INCLUDE_INBOUND: &str = "traffic.sidecar.istio.io/includeInboundPorts";
const EXCLUDE_INBOUND: &str = "traffic.sidecar.istio.io/excludeInboundPorts";
const INCLUDE_OUTBOUND: &str = "traffic.sidecar.istio.io/includeOutboundPorts";
const EXCLUDE_OUTBOUND: &str = "traffic.sidecar.istio.io/excludeOutboundPorts";
const EXCLUDE_INTERFACES: &str = "traffic.sidecar.istio.io/excludeInterfaces";
const VIRTUAL_INTERFACES: &str = "istio.io/reroute-virtual-interfaces";
const KUBEVIRT_INTERFACES: &str = "traffic.sidecar.istio.io/kubevirtInterfaces";

/// Every annotation whose value is a list.
const LISTS: [&str; 9] = [
    INCLUDE_TO,
    EXCLUDE_TO,
    INCLUDE_INBOUND,
    EXCLUDE_INBOUND,
    INCLUDE_OUTBOUND,
    EXCLUDE_OUTBOUND,
    EXCLUDE_INTERFACES,
    VIRTUAL_INTERFACES,
    KUBEVIRT_INTERFACES,
];

/// Whether this annotation's value is a list.
pub(crate) fn is_list(annotation: &str) -> bool {
    LISTS.contains(&annotation)
}

/// Reads the means alone: [`Interception::None`] leaves the pod alone whatever else it says.
///
/// # Errors
/// When it is no word Istio knows.
pub fn interception(pod: &PodFacts) -> Result<Interception, AnnotationError> {
    match pod.annotation(MODE) {
        None | Some("REDIRECT") => Ok(Interception::Redirect),
        Some("TPROXY") => Ok(Interception::Tproxy),
        Some("NONE") => Ok(Interception::None),
        Some(other) => Err(AnnotationError::of(MODE, Fault::mode(other))),
    }
}

/// Reads all of a pod's traffic annotations. No list may come to more than `most` intervals.
///
/// # Errors
/// Names every annotation that cannot be meant, and of the first the item in it and what would be right.
pub fn traffic(pod: &PodFacts, most: MaxIntervals) -> Result<Traffic, AnnotationError> {
    let (lists, mut faults) = (Lists { pod, most: most.get() }, Faults::default());
    let traffic = Traffic {
        interception: faults.keep(interception(pod), Interception::Redirect),
        included_to: faults.keep(lists.included_to(), Destinations::All),
        excluded_to: faults.keep(lists.read(EXCLUDE_TO, lists::networks), None).unwrap_or_default(),
        excluded_inbound: faults.keep(lists.excluded_inbound(), PortSet::default()),
        included_inbound: faults.keep(lists.included_inbound(), InboundPorts::Unsaid),
        excluded_outbound: faults
            .keep(lists.read(EXCLUDE_OUTBOUND, lists::ports), None)
            .unwrap_or_else(|| [TELEMETRY_PORT].into_iter().collect()),
        included_outbound: faults.keep(lists.read(INCLUDE_OUTBOUND, lists::ports), None).unwrap_or_default(),
        excluded_interfaces: faults
            .keep(lists.read(EXCLUDE_INTERFACES, lists::interfaces), None)
            .unwrap_or_default(),
        virtual_interfaces: faults.keep(lists.virtual_interfaces(), BTreeSet::new()),
    };
    faults.0.map_or(Ok(traffic), Err)
}

/// A pod's lists, and how long each may be.
struct Lists<'p> {
    pod: &'p PodFacts,
    most: usize,
}

impl Lists<'_> {
    fn read<T>(
        &self,
        annotation: &'static str,
        list: fn(&str, usize) -> Result<T, Fault>,
    ) -> Result<Option<T>, AnnotationError> {
        let value = self.pod.annotation(annotation).map(|value| list(value, self.most)).transpose();
        value.map_err(|fault| AnnotationError::of(annotation, fault))
    }

    fn included_to(&self) -> Result<Destinations, AnnotationError> {
        match self.pod.annotation(INCLUDE_TO).map(str::trim) {
            None | Some("*") => Ok(Destinations::All),
            Some(_) => Ok(Destinations::Only(self.read(INCLUDE_TO, lists::networks)?.unwrap_or_default())),
        }
    }

    fn included_inbound(&self) -> Result<InboundPorts, AnnotationError> {
        match self.pod.annotation(INCLUDE_INBOUND).map(str::trim) {
            None => Ok(InboundPorts::Unsaid),
            Some("*") => Ok(InboundPorts::All),
            Some(_) => Ok(InboundPorts::Only(self.read(INCLUDE_INBOUND, lists::ports)?.unwrap_or_default())),
        }
    }

    fn excluded_inbound(&self) -> Result<PortSet, AnnotationError> {
        let said = self.read(EXCLUDE_INBOUND, lists::ports)?.unwrap_or_default();
        let proxy = PROXY_PORTS.into_iter().filter_map(|port| PortRange::new(port, port));
        Ok(said.ranges().iter().copied().chain(proxy).collect())
    }

    /// The older name counts only where the newer is absent.
    fn virtual_interfaces(&self) -> Result<BTreeSet<InterfaceName>, AnnotationError> {
        match self.read(VIRTUAL_INTERFACES, lists::interfaces)? {
            Some(said) => Ok(said),
            None => Ok(self.read(KUBEVIRT_INTERFACES, lists::interfaces)?.unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests;
