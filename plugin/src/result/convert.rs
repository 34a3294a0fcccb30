//! Converts a result to another version: members that the version has elsewhere are moved,
//! members that it lacks are removed, and members that no version defines are kept. Pure.
//!
//! The format of each version: CNI specification, section 5 of 0.2.0, 0.4.0, 1.0.0 and 1.1.0.

mod ip4_ip6;

use serde_json::{Map, Value, json};
use std::net::IpAddr;

type Members = Map<String, Value>;

/// The format of results in a range of versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// 0.1.0 and 0.2.0: `ip4` and `ip6`, one address each.
    Ip4Ip6,
    /// 0.3.0 to 0.4.0: a list `ips` whose items have their family in `version`.
    VersionedIps,
    /// 1.0.0 and 1.1.0: a list `ips`; the address implies its family.
    PlainIps,
}

/// The versions of each format, oldest first.
const VERSIONS: [(Format, &[&str]); 3] = [
    (Format::Ip4Ip6, &["0.1.0", "0.2.0"]),
    (Format::VersionedIps, &["0.3.0", "0.3.1", "0.4.0"]),
    (Format::PlainIps, &["1.0.0", "1.1.0"]),
];

/// Why a result cannot be converted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// The unsupported version, truncated to 32 characters.
    #[error("a result cannot be written in version {0:?}")]
    Version(String),
    /// A member of the wrong type, or not an address.
    #[error("{part} is {value}, which must be {expected}")]
    Part {
        /// The member.
        part: &'static str,
        /// Its value as JSON, truncated to 64 characters.
        value: String,
        /// What it must be.
        expected: &'static str,
    },
    /// Before 0.3.0 a result must have an address.
    #[error("there is no address in it, and a result of version {0} must have one")]
    NoAddress(String),
}

impl Format {
    /// Returns the format of a version; an empty one is 0.1.0, which had no such key.
    pub fn of(version: &str) -> Option<Self> {
        let version = if version.is_empty() { "0.1.0" } else { version };
        VERSIONS.into_iter().find(|(_, all)| all.contains(&version)).map(|(format, _)| format)
    }

    /// Returns the versions of this format, oldest first.
    pub fn versions(self) -> &'static [&'static str] {
        VERSIONS.into_iter().find(|(format, _)| *format == self).map_or(&[], |(_, all)| all)
    }
}

/// Converts `result` from the format `from` to `version`.
///
/// # Errors
/// When the version is unsupported, the result is invalid, or the version cannot express it.
pub fn convert(mut result: Members, from: Format, version: &str) -> Result<Members, ConvertError> {
    let to = Format::of(version).ok_or_else(|| ConvertError::Version(version.chars().take(32).collect()))?;
    validate(&result)?;
    let version = if version.is_empty() { "0.1.0" } else { version };
    if from == Format::Ip4Ip6 && to != Format::Ip4Ip6 {
        ip4_ip6::split(&mut result)?;
    }
    if from != Format::Ip4Ip6 && to == Format::Ip4Ip6 {
        add_families(&mut result)?;
        ip4_ip6::join(&mut result, version)?;
    }
    if to == Format::VersionedIps {
        add_families(&mut result)?;
    }
    if from == Format::PlainIps && to < from {
        remove_new_members(&mut result);
    }
    if to == Format::PlainIps && from != to {
        each(&mut result, "ips", |ip| drop(ip.remove("version")));
    }
    dns(&mut result, from, to);
    result.insert("cniVersion".to_owned(), version.into());
    Ok(result)
}

/// Versions before 1.0.0 have `dns` even when it is empty, 1.0.0 omits it (docs/RULES.md, section 6). The
/// `dns` of a newer version's result is passed on unchanged.
fn dns(result: &mut Members, from: Format, to: Format) {
    let empty =
        result.get("dns").is_none_or(|dns| dns.is_null() || dns.as_object().is_some_and(Map::is_empty));
    if empty && to != Format::PlainIps {
        result.insert("dns".to_owned(), json!({}));
    } else if empty && from != Format::PlainIps {
        result.remove("dns");
    }
}

/// Adds `version: "4"` or `"6"` by the address, where it is missing.
fn add_families(result: &mut Members) -> Result<(), ConvertError> {
    let mut failed = None;
    each(result, "ips", |ip| match ip.get("address").map(address) {
        Some(Ok(address)) if !ip.contains_key("version") => {
            ip.insert("version".to_owned(), if address.is_ipv4() { "4" } else { "6" }.into());
        }
        Some(Err(fault)) => failed = Some(fault),
        _ => {}
    });
    failed.map_or(Ok(()), Err)
}

/// Removes what 1.1.0 added to interfaces. Keeps what 1.1.0 added to routes, as the reference library does.
fn remove_new_members(result: &mut Members) {
    each(result, "interfaces", |interface| {
        ["mtu", "socketPath", "pciID"].into_iter().for_each(|key| drop(interface.remove(key)));
    });
}

/// Checks the types of the members and the syntax of addresses.
fn validate(result: &Members) -> Result<(), ConvertError> {
    for part in ["interfaces", "ips", "routes"] {
        let Some(value) = result.get(part).filter(|value| !value.is_null()) else { continue };
        let list = value.as_array().filter(|list| list.iter().all(Value::is_object));
        let list = list.ok_or_else(|| wrong(part, value, "a list of objects"))?;
        let key = if part == "ips" { "address" } else { "dst" };
        if part != "interfaces" {
            list.iter().try_for_each(|item| address(item.get(key).unwrap_or(&Value::Null)).map(drop))?;
        }
    }
    match result.get("dns") {
        Some(dns) if !dns.is_object() && !dns.is_null() => Err(wrong("dns", dns, "an object")),
        _ => Ok(()),
    }
}

/// Parses the address of `10.1.0.5/16`.
fn address(cidr: &Value) -> Result<IpAddr, ConvertError> {
    let refused = || wrong("an address", cidr, "one with its prefix length, like 10.1.0.5/16");
    let (ip, length) = cidr.as_str().and_then(|text| text.split_once('/')).ok_or_else(refused)?;
    let ip: IpAddr = ip.parse().map_err(|_| refused())?;
    let max = if ip.is_ipv4() { 32 } else { 128 };
    let digits = length.bytes().all(|b| b.is_ascii_digit());
    let fits = digits && length.parse::<u8>().is_ok_and(|length| length <= max);
    if fits { Ok(ip) } else { Err(refused()) }
}

fn wrong(part: &'static str, value: &Value, expected: &'static str) -> ConvertError {
    ConvertError::Part { part, value: value.to_string().chars().take(64).collect(), expected }
}

/// Calls `work` for each object of a list.
fn each(result: &mut Members, list: &str, work: impl FnMut(&mut Members)) {
    let list = result.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
    list.filter_map(Value::as_object_mut).for_each(work);
}

#[cfg(test)]
mod tests;
