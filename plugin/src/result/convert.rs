//! One result written in another version: what a version knows in another place is moved there,
//! what it does not know at all is left out, and what no version knows survives. Pure.
//!
//! How each version writes a result: CNI specification, section 5 of 0.2.0, 0.4.0, 1.0.0 and 1.1.0.

mod pair;

use serde_json::{Map, Value, json};
use std::net::IpAddr;

/// A result as JSON has it.
type Members = Map<String, Value>;

/// How a version writes a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// 0.1.0 and 0.2.0: `ip4` and `ip6`, one address each.
    Pair,
    /// 0.3.0 to 0.4.0: a list `ips` whose items tell their family in `version`.
    Told,
    /// 1.0.0 and 1.1.0: the same list, and the address tells its family.
    Plain,
}

/// Result versions that are written alike, oldest first.
const VERSIONS: [(Form, &[&str]); 3] = [
    (Form::Pair, &["0.1.0", "0.2.0"]),
    (Form::Told, &["0.3.0", "0.3.1", "0.4.0"]),
    (Form::Plain, &["1.0.0", "1.1.0"]),
];

/// Why a result cannot be written in a version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// A version nobody told us how to write.
    #[error("a result cannot be written in version {0:?}")]
    Version(String),
    /// A part that is of another type than results have, or no address.
    #[error("{part} is {value}, which must be {wanted}")]
    Part {
        /// Which part.
        part: &'static str,
        /// Its value as JSON, cut short.
        value: String,
        /// What would be right.
        wanted: &'static str,
    },
    /// Before 0.3.0 a result must have an address.
    #[error("there is no address in it, and a result of version {0} must have one")]
    NoAddress(String),
}

impl Form {
    /// The form of a version; 0.1.0 had no such key, so none is that.
    pub fn of(version: &str) -> Option<Self> {
        let version = if version.is_empty() { "0.1.0" } else { version };
        VERSIONS.into_iter().find(|(_, all)| all.contains(&version)).map(|(form, _)| form)
    }

    /// The versions written so.
    pub fn versions(self) -> &'static [&'static str] {
        VERSIONS.into_iter().find(|(form, _)| *form == self).map_or(&[], |(_, all)| all)
    }
}

/// Writes `result`, which is of form `from`, in `version`.
///
/// # Errors
/// When the version is unknown, the result is none, or the version cannot say what it says.
pub fn convert(mut result: Members, from: Form, version: &str) -> Result<Members, ConvertError> {
    let to = Form::of(version).ok_or_else(|| ConvertError::Version(version.chars().take(32).collect()))?;
    look_over(&result)?;
    let version = if version.is_empty() { "0.1.0" } else { version };
    if from == Form::Pair && to != Form::Pair {
        pair::apart(&mut result)?;
    }
    if from != Form::Pair && to == Form::Pair {
        tell_families(&mut result)?;
        pair::together(&mut result, version)?;
    }
    if to == Form::Told {
        tell_families(&mut result)?;
    }
    if from == Form::Plain && to < from {
        without_news(&mut result);
    }
    if to == Form::Plain && from != to {
        each(&mut result, "ips", |ip| drop(ip.remove("version")));
    }
    dns(&mut result, from, to);
    result.insert("cniVersion".to_owned(), version.into());
    Ok(result)
}

/// Versions before 1.0.0 print `dns` also when it is empty, 1.0.0 leaves it out (docs/RULES.md, section 6).
/// One that came in a newer version's result is handed on as it came.
fn dns(result: &mut Members, from: Form, to: Form) {
    let empty =
        result.get("dns").is_none_or(|dns| dns.is_null() || dns.as_object().is_some_and(Map::is_empty));
    if empty && to != Form::Plain {
        result.insert("dns".to_owned(), json!({}));
    } else if empty && from != Form::Plain {
        result.remove("dns");
    }
}

/// `version: "4"` or `"6"`, by the address; what is said already stays.
fn tell_families(result: &mut Members) -> Result<(), ConvertError> {
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

/// What 1.1.0 brought to interfaces. Its news about routes are handed on, as the reference does.
fn without_news(result: &mut Members) {
    each(result, "interfaces", |interface| {
        ["mtu", "socketPath", "pciID"].into_iter().for_each(|key| drop(interface.remove(key)));
    });
}

/// A result that nobody could have meant is no result to hand on.
fn look_over(result: &Members) -> Result<(), ConvertError> {
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

/// The address of `10.1.0.5/16`.
fn address(cidr: &Value) -> Result<IpAddr, ConvertError> {
    let refused = || wrong("an address", cidr, "one with its prefix length, like 10.1.0.5/16");
    let (ip, length) = cidr.as_str().and_then(|text| text.split_once('/')).ok_or_else(refused)?;
    let ip: IpAddr = ip.parse().map_err(|_| refused())?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let digits = length.bytes().all(|b| b.is_ascii_digit());
    let fits = digits && length.parse::<u8>().is_ok_and(|length| length <= most);
    if fits { Ok(ip) } else { Err(refused()) }
}

fn wrong(part: &'static str, value: &Value, wanted: &'static str) -> ConvertError {
    ConvertError::Part { part, value: value.to_string().chars().take(64).collect(), wanted }
}

/// Does something to each object of a list.
fn each(result: &mut Members, list: &str, work: impl FnMut(&mut Members)) {
    let list = result.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
    list.filter_map(Value::as_object_mut).for_each(work);
}

#[cfg(test)]
mod tests;
