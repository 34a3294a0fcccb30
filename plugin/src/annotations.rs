//! A pod's traffic annotations, parsed into values.
//!
//! The rules are those of docs/ISTIO.md, section 4. `names` has the table of all annotations, `annotations/lists.rs`
//! parses one list; `decide` makes the policy of the values.

mod lists;

use crate::conf::{AmbientConf, MaxIntervals};
use crate::names::{
    AMBIENT_DNS, BYPASS_INBOUND, EXCLUDE_INBOUND, EXCLUDE_INTERFACES, EXCLUDE_OUTBOUND, EXCLUDE_TO,
    INCLUDE_INBOUND, INCLUDE_OUTBOUND, INCLUDE_TO, KUBEVIRT_INTERFACES, MODE, VIRTUAL_INTERFACES,
};
use crate::pod::{PodFacts, parse_bool};
use gybe_netfilter::model::policy::ambient::{AmbientDns, AmbientInbound};
use gybe_netfilter::model::policy::istio::{PROXY_PORTS, TELEMETRY_PORT};
use gybe_netfilter::model::policy::{
    AmbientPolicy, CidrSet, Destinations, InterfaceName, PortRange, PortSet,
};
use lists::ValueError;
use std::collections::BTreeSet;

/// The pod's interception mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interception {
    /// Destination NAT.
    Redirect,
    /// Transparent sockets.
    Tproxy,
    /// No interception: the injector writes it for pods that opt out.
    None,
}

/// The inbound ports that the pod asks to capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InboundPorts {
    /// No annotation: the configured default applies.
    Unset,
    /// Every port (`*`).
    All,
    /// The listed ports.
    Only(PortSet),
}

/// The values of a pod's traffic annotations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrafficAnnotations {
    /// The mode.
    pub interception: Interception,
    /// Outbound networks that are captured.
    pub included_to: Destinations,
    /// Outbound networks that are left alone.
    pub excluded_to: CidrSet,
    /// Inbound ports that are captured.
    pub included_inbound: InboundPorts,
    /// Inbound ports that are left alone when all are captured, the proxy's own included.
    pub excluded_inbound: PortSet,
    /// Outbound ports that are captured to every destination.
    pub included_outbound: PortSet,
    /// Outbound ports that are left alone.
    pub excluded_outbound: PortSet,
    /// Interfaces that are captured in neither direction.
    pub excluded_interfaces: BTreeSet<InterfaceName>,
    /// Interfaces of virtual machines.
    pub virtual_interfaces: BTreeSet<InterfaceName>,
}

/// Invalid annotations. All are named, and the first is explained: the message of a failed ADD has no room
/// for more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("annotation {annotation}: {fault}{}", named(also))]
pub struct AnnotationError {
    /// The full name of the first.
    pub annotation: &'static str,
    /// The fault in its value.
    fault: ValueError,
    /// The names of the others.
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
    fn of(annotation: &'static str, fault: ValueError) -> Self {
        Self { annotation, fault, also: Vec::new() }
    }
}

/// The invalid annotations found so far.
#[derive(Default)]
struct InvalidAnnotations(Option<AnnotationError>);

impl InvalidAnnotations {
    /// Returns the value, or keeps the error and returns `default`.
    fn keep<T>(&mut self, value: Result<T, AnnotationError>, default: T) -> T {
        value.unwrap_or_else(|error| {
            match &mut self.0 {
                Some(first) => first.also.push(error.annotation),
                none => *none = Some(error),
            }
            default
        })
    }
}

/// Parses the mode. [`Interception::None`] leaves the pod alone whatever its other annotations are.
///
/// # Errors
/// When the mode is unknown.
pub fn interception(pod: &PodFacts) -> Result<Interception, AnnotationError> {
    match pod.annotation(MODE) {
        None | Some("REDIRECT") => Ok(Interception::Redirect),
        Some("TPROXY") => Ok(Interception::Tproxy),
        Some("NONE") => Ok(Interception::None),
        Some(other) => Err(AnnotationError::of(MODE, ValueError::mode(other))),
    }
}

/// Parses all of a pod's traffic annotations. No list may have more than `max` intervals.
///
/// # Errors
/// Names every invalid annotation, and for the first the invalid item and the expected syntax.
pub fn traffic(pod: &PodFacts, max: MaxIntervals) -> Result<TrafficAnnotations, AnnotationError> {
    let (lists, mut invalid) = (AnnotationLists { pod, max: max.get() }, InvalidAnnotations::default());
    let traffic = TrafficAnnotations {
        interception: invalid.keep(interception(pod), Interception::Redirect),
        included_to: invalid.keep(lists.included_to(), Destinations::All),
        excluded_to: invalid.keep(lists.read(EXCLUDE_TO, lists::networks), None).unwrap_or_default(),
        excluded_inbound: invalid.keep(lists.excluded_inbound(), PortSet::default()),
        included_inbound: invalid.keep(lists.included_inbound(), InboundPorts::Unset),
        excluded_outbound: invalid
            .keep(lists.read(EXCLUDE_OUTBOUND, lists::ports), None)
            .unwrap_or_else(|| [TELEMETRY_PORT].into_iter().collect()),
        included_outbound: invalid.keep(lists.read(INCLUDE_OUTBOUND, lists::ports), None).unwrap_or_default(),
        excluded_interfaces: invalid
            .keep(lists.read(EXCLUDE_INTERFACES, lists::interfaces), None)
            .unwrap_or_default(),
        virtual_interfaces: invalid.keep(lists.virtual_interfaces(), BTreeSet::new()),
    };
    invalid.0.map_or(Ok(traffic), Err)
}

/// Returns the policy of an ambient pod. An annotation whose value is not a boolean is ignored, as in istio-cni;
/// [`warnings`](crate::decide::warnings) reports it.
///
/// # Errors
/// When the list of interfaces is invalid.
pub fn ambient(
    pod: &PodFacts,
    conf: AmbientConf,
    max: MaxIntervals,
) -> Result<AmbientPolicy, AnnotationError> {
    let is_set = |name| pod.annotation(name).and_then(parse_bool);
    let inbound = match is_set(BYPASS_INBOUND) {
        Some(true) => AmbientInbound::Bypassed,
        Some(false) | None => AmbientInbound::Captured,
    };
    let dns = match is_set(AMBIENT_DNS) {
        Some(true) => AmbientDns::Captured,
        Some(false) => AmbientDns::Off,
        None => conf.dns,
    };
    let lists = AnnotationLists { pod, max: max.get() };
    let virtual_interfaces = lists.read(VIRTUAL_INTERFACES, lists::interfaces)?.unwrap_or_default();
    Ok(AmbientPolicy { inbound, dns, virtual_interfaces, probes: conf.probes, families: conf.families })
}

/// A pod's lists, and the maximum number of intervals of each.
struct AnnotationLists<'p> {
    pod: &'p PodFacts,
    max: usize,
}

impl AnnotationLists<'_> {
    fn read<T>(
        &self,
        annotation: &'static str,
        list: fn(&str, usize) -> Result<T, ValueError>,
    ) -> Result<Option<T>, AnnotationError> {
        let value = self.pod.annotation(annotation).map(|value| list(value, self.max)).transpose();
        value.map_err(|error| AnnotationError::of(annotation, error))
    }

    fn included_to(&self) -> Result<Destinations, AnnotationError> {
        match self.pod.annotation(INCLUDE_TO).map(str::trim) {
            None | Some("*") => Ok(Destinations::All),
            Some(_) => Ok(Destinations::Only(self.read(INCLUDE_TO, lists::networks)?.unwrap_or_default())),
        }
    }

    fn included_inbound(&self) -> Result<InboundPorts, AnnotationError> {
        match self.pod.annotation(INCLUDE_INBOUND).map(str::trim) {
            None => Ok(InboundPorts::Unset),
            Some("*") => Ok(InboundPorts::All),
            Some(_) => Ok(InboundPorts::Only(self.read(INCLUDE_INBOUND, lists::ports)?.unwrap_or_default())),
        }
    }

    fn excluded_inbound(&self) -> Result<PortSet, AnnotationError> {
        let listed = self.read(EXCLUDE_INBOUND, lists::ports)?.unwrap_or_default();
        let proxy = PROXY_PORTS.into_iter().filter_map(|port| PortRange::new(port, port));
        Ok(listed.ranges().iter().copied().chain(proxy).collect())
    }

    fn virtual_interfaces(&self) -> Result<BTreeSet<InterfaceName>, AnnotationError> {
        Ok(self.read(virtual_interfaces_annotation(self.pod), lists::interfaces)?.unwrap_or_default())
    }
}

/// Returns the annotation that counts: the older name only if the newer is absent.
pub(crate) fn virtual_interfaces_annotation(pod: &PodFacts) -> &'static str {
    match pod.annotation(VIRTUAL_INTERFACES) {
        Some(_) => VIRTUAL_INTERFACES,
        None => KUBEVIRT_INTERFACES,
    }
}

#[cfg(test)]
mod tests;
