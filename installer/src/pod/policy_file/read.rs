//! Reads the values of a JSON object by key and collects their faults. Each read takes the parser of a value's text; its
//! error is a sentence about the value. These parsers follow the reader.

use gybe_netfilter::model::policy::istio::OWN_POD_MARK;
use gybe_netfilter::model::policy::{
    InterfaceName, InterfaceNameError, LoopbackCidr, Mark, Port, PortError, PortRange, decimal, port,
};
use gybe_plugin::conf::joined;
use gybe_plugin::names::nearest_of;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// What is wrong with one key: it is unknown, or its value is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}")]
pub struct PolicyFault {
    pub key: String,
    pub why: String,
}

/// Why a text is not a policy file.
#[derive(Debug, thiserror::Error)]
pub enum PolicyFileError {
    #[error("the policy is not a JSON object without duplicate keys")]
    NotAnObject(#[source] serde_json::Error),
    #[error("the policy has {} fault{}: {}", .0.len(), if .0.len() == 1 { "" } else { "s" }, joined(.0))]
    Faults(Vec<PolicyFault>),
}

/// `*`, or a list of values.
pub(super) enum ListOrAll<T> {
    All,
    Only(Vec<T>),
}

/// How many edits make a known key of an unknown one that may be misspelt.
const MAX_EDITS: usize = 2;
/// The number of characters of an unknown key that a fault shows.
const MAX_SHOWN_KEY: usize = 64;

/// An object and the keys read from it; a key that is never read is unknown.
pub(super) struct PolicyReader<'a> {
    entries: &'a Map<String, Value>,
    read_keys: Vec<&'static str>,
    faults: Vec<PolicyFault>,
}

impl<'a> PolicyReader<'a> {
    pub(super) fn new(entries: &'a Map<String, Value>) -> Self {
        Self { entries, read_keys: Vec::new(), faults: Vec::new() }
    }

    /// Fails with the faults of all reads and the unknown keys, if there are any.
    pub(super) fn finish(mut self) -> Result<(), PolicyFileError> {
        let unknown = self.entries.keys().filter(|key| !self.read_keys.contains(&key.as_str()));
        self.faults.extend(unknown.map(|key| {
            let why = match nearest_of(&key.to_lowercase(), &self.read_keys.iter().copied(), MAX_EDITS) {
                Some(known) => format!("unknown key; did you mean {known}?"),
                None => "unknown key".to_owned(),
            };
            PolicyFault { key: key.chars().take(MAX_SHOWN_KEY).collect(), why }
        }));
        if self.faults.is_empty() { Ok(()) } else { Err(PolicyFileError::Faults(self.faults)) }
    }

    pub(super) fn fault(&mut self, key: &str, why: impl fmt::Display) {
        self.faults.push(PolicyFault { key: key.to_owned(), why: why.to_string() });
    }

    pub(super) fn is_given(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    pub(super) fn flag(&mut self, key: &'static str) -> Option<bool> {
        match self.value(key)? {
            Value::Bool(flag) => Some(*flag),
            _ => {
                self.fault(key, "must be true or false");
                None
            }
        }
    }

    /// Reads one value, a string or a whole number; none if it is absent or has a fault.
    pub(super) fn text<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        let Some(text) = text_of(self.value(key)?) else {
            self.fault(key, "must be a string or a whole number");
            return None;
        };
        parse(&text).map_err(|why| self.fault(key, why)).ok()
    }

    /// Reads a list; `*` in it is a fault, and an absent key is an empty list.
    pub(super) fn list<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<T> {
        let texts = self.texts(key).unwrap_or_default();
        if texts.iter().any(|text| text == "*") {
            self.fault(key, "does not take \"*\"");
        }
        self.parse_all(key, &texts, parse)
    }

    /// Reads a list or `["*"]`; an absent key means `*`.
    pub(super) fn list_or_all<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> ListOrAll<T> {
        let Some(texts) = self.texts(key) else { return ListOrAll::All };
        let star = texts.iter().any(|text| text == "*");
        if star && texts.len() == 1 {
            return ListOrAll::All;
        }
        if star {
            self.fault(key, "has \"*\" and other values; \"*\" means all and must be the only value");
        }
        ListOrAll::Only(self.parse_all(key, &texts, parse))
    }

    /// Parses all texts but `*`.
    fn parse_all<T, E: fmt::Display>(
        &mut self,
        key: &str,
        texts: &[String],
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<T> {
        let values = texts.iter().filter(|text| *text != "*");
        values.filter_map(|text| parse(text).map_err(|why| self.fault(key, why)).ok()).collect()
    }

    fn texts(&mut self, key: &'static str) -> Option<Vec<String>> {
        let texts = match self.value(key)? {
            Value::Array(items) => items.iter().map(text_of).collect::<Option<Vec<_>>>(),
            _ => None,
        };
        if texts.is_none() {
            self.fault(key, "must be a list of strings or whole numbers");
        }
        texts
    }

    /// Returns the value of a key, and records the key as known.
    fn value(&mut self, key: &'static str) -> Option<&'a Value> {
        self.read_keys.push(key);
        self.entries.get(key)
    }
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) if number.is_u64() || number.is_i64() => Some(number.to_string()),
        _ => None,
    }
}

/// Parses an object and refuses duplicate keys: JSON parsers differ in which of their values they use.
pub(super) fn object(text: &str) -> Result<Map<String, Value>, PolicyFileError> {
    let mut json = serde_json::Deserializer::from_str(text);
    let parsed = json.deserialize_map(WithoutDuplicates).and_then(|entries| json.end().map(|()| entries));
    parsed.map_err(PolicyFileError::NotAnObject)
}

struct WithoutDuplicates;

impl<'de> Visitor<'de> for WithoutDuplicates {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut source: A) -> Result<Self::Value, A::Error> {
        let mut entries = Map::new();
        while let Some((key, value)) = source.next_entry::<String, Value>()? {
            if entries.contains_key(&key) {
                return Err(A::Error::custom(format_args!("duplicate key {key:?}")));
            }
            entries.insert(key, value);
        }
        Ok(entries)
    }
}

/// The key that names the kind of policy.
pub(super) const KIND: &str = "kind";
/// The kind of an ambient policy.
pub(super) const AMBIENT: &str = "ambient";

pub(super) fn is_sidecar(text: &str) -> Result<(), String> {
    match text {
        "sidecar" => Ok(()),
        _ => Err(format!("{:?} is neither sidecar nor {AMBIENT}", brief(text))),
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum ModeName {
    Redirect,
    Tproxy,
}

pub(super) fn mode(text: &str) -> Result<ModeName, String> {
    match text {
        "REDIRECT" => Ok(ModeName::Redirect),
        "TPROXY" => Ok(ModeName::Tproxy),
        _ => Err(format!("{:?} is neither REDIRECT nor TPROXY", brief(text))),
    }
}

pub(super) fn listener(text: &str) -> Result<Port, String> {
    let listener = port(text).ok().and_then(Port::new);
    listener.ok_or_else(|| is_not(text, "a port to listen on, 1 to 65535"))
}

pub(super) fn ports(text: &str) -> Result<PortRange, <PortRange as FromStr>::Err> {
    text.parse()
}

/// Parses a numeric user or group. A name would have to be looked up in the pod's own files or, as happened to
/// iptables, over the network: docs/ISTIO.md, section 2.7.
pub(super) fn id(text: &str) -> Result<u32, String> {
    match decimal(text) {
        Some(u32::MAX) => Err(format!("{text:?} is the kernel's value for no user at all")),
        Some(id) => Ok(id),
        None => Err(is_not(
            text,
            "a numeric id from 0 to 4294967294; ranges are not supported, and names are refused because they \
             have their meaning in the pod's files only",
        )),
    }
}

pub(super) fn interface(text: &str) -> Result<InterfaceName, InterfaceNameError> {
    InterfaceName::parse(text)
}

pub(super) fn server_v4(text: &str) -> Result<IpAddr, String> {
    let address = text.parse::<Ipv4Addr>().map(IpAddr::from);
    address.map_err(|_| format!("{:?} is not an IPv4 address", brief(text)))
}

pub(super) fn server_v6(text: &str) -> Result<IpAddr, String> {
    let address = text.parse::<Ipv6Addr>().map(IpAddr::from);
    address.map_err(|_| format!("{:?} is not an IPv6 address", brief(text)))
}

pub(super) fn loopback(text: &str) -> Result<LoopbackCidr, <LoopbackCidr as FromStr>::Err> {
    text.parse()
}

pub(super) fn mark(text: &str) -> Result<Mark, String> {
    match decimal(text) {
        Some(0) => Err("0 is the mark of every packet without a mark".to_owned()),
        Some(OWN_POD_MARK) => {
            Err(format!("{OWN_POD_MARK} already marks packets that the proxy sends to its own pod"))
        }
        Some(mark) => Ok(mark),
        None => Err(is_not(text, "a packet mark, 1 to 4294967295")),
    }
}

/// The tables 253, 254 and 255 are the kernel's `default`, `main` and `local`: a route that delivers
/// everything locally would cut the namespace off (rtnetlink(7), `RT_TABLE_*`).
pub(super) fn route_table(text: &str) -> Result<u32, String> {
    match decimal(text) {
        Some(kernels @ (0 | 253..=255)) => {
            Err(format!("routing table {kernels} is the kernel's own; choose another, like 133"))
        }
        Some(table) => Ok(table),
        None => Err(is_not(text, "a routing table, 1 to 4294967295")),
    }
}

fn is_not(text: &str, expected: &str) -> String {
    match port(text) {
        Err(PortError::LeadingZero(_)) => PortError::LeadingZero(brief(text)).to_string(),
        _ => format!("{:?} is not {expected}", brief(text)),
    }
}

fn brief(text: &str) -> String {
    text.chars().take(64).collect()
}
