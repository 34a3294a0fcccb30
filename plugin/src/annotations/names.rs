//! The table of all annotations that the plugin reads: their names, the form of their values, and their effect.

use super::{
    EXCLUDE_INBOUND, EXCLUDE_INTERFACES, EXCLUDE_OUTBOUND, EXCLUDE_TO, INCLUDE_INBOUND, INCLUDE_OUTBOUND,
    INCLUDE_TO, KUBEVIRT_INTERFACES, MODE, VIRTUAL_INTERFACES,
};
use crate::gates::{INJECT, STATUS};

/// An annotation of a pod.
#[derive(Debug, Clone, Copy)]
pub struct Annotation {
    /// The full name.
    pub name: &'static str,
    /// The form of its value.
    pub form: ValueForm,
    /// The value with the effect of no annotation; none if no value has that effect.
    pub default: Option<&'static str>,
    /// Its effect.
    pub meaning: &'static str,
}

/// The form of an annotation's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueForm {
    /// Any text.
    Text,
    /// A boolean, as Go's `strconv.ParseBool` reads it. Another text counts as no annotation, except that with
    /// `gates: strict` `sidecar.istio.io/inject` then leaves the pod alone.
    Boolean,
    /// A mode.
    Mode,
    /// A list of ports and ranges.
    Ports,
    /// `*`, or a list of ports and ranges.
    PortsOrAll,
    /// A list of networks.
    Networks,
    /// `*`, or a list of networks.
    NetworksOrAll,
    /// A list of interfaces.
    Interfaces,
}

const fn of(name: &'static str, form: ValueForm, default: &'static str, meaning: &'static str) -> Annotation {
    Annotation { name, form, default: Some(default), meaning }
}

/// All annotations.
pub static ANNOTATIONS: [Annotation; 12] = [
    Annotation {
        name: STATUS,
        form: ValueForm::Text,
        default: None,
        meaning: "the injector writes it; without it the pod is left alone",
    },
    of(
        INJECT,
        ValueForm::Boolean,
        "true",
        "`false` leaves the pod alone; a label of that name has precedence",
    ),
    of(
        MODE,
        ValueForm::Mode,
        "REDIRECT",
        "how inbound connections reach the proxy; `NONE` leaves the pod alone",
    ),
    of(
        INCLUDE_TO,
        ValueForm::NetworksOrAll,
        "*",
        "the destinations of outbound connections that are captured; with an empty list none is captured by its address",
    ),
    of(EXCLUDE_TO, ValueForm::Networks, "", "destinations that are left alone"),
    of(
        INCLUDE_INBOUND,
        ValueForm::PortsOrAll,
        "*",
        "the inbound ports that are captured; with an empty list none is. Without it, `inboundDefault: containerPorts` \
         has precedence",
    ),
    of(
        EXCLUDE_INBOUND,
        ValueForm::Ports,
        "",
        "ports that are left alone, in addition to 15020, 15021 and 15090; no effect with a list of included ports",
    ),
    of(INCLUDE_OUTBOUND, ValueForm::Ports, "", "ports that are captured for every destination, TCP"),
    of(EXCLUDE_OUTBOUND, ValueForm::Ports, "15020", "ports that are left alone, TCP and UDP"),
    of(EXCLUDE_INTERFACES, ValueForm::Interfaces, "", "interfaces on which nothing is captured"),
    of(
        VIRTUAL_INTERFACES,
        ValueForm::Interfaces,
        "",
        "interfaces of virtual machines, whose traffic counts as outbound",
    ),
    of(
        KUBEVIRT_INTERFACES,
        ValueForm::Interfaces,
        "",
        "the older name of the one above, used only without it",
    ),
];

/// Reports whether the value of an annotation is a list.
pub(crate) fn is_list(name: &str) -> bool {
    ANNOTATIONS.iter().any(|annotation| annotation.name == name && annotation.form.is_list())
}

impl ValueForm {
    /// Reports whether the value is a list.
    pub fn is_list(self) -> bool {
        !matches!(self, Self::Text | Self::Boolean | Self::Mode)
    }
}
