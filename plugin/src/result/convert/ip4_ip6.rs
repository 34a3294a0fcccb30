//! The format of 0.1.0 and 0.2.0: `ip4` and `ip6`, one address each, with the routes of its family.

use super::{ConvertError, Members, address, wrong};
use serde_json::{Value, json};

const FAMILIES: [(&str, &str); 2] = [("ip4", "4"), ("ip6", "6")];

/// Moves `ip4` and `ip6` into the lists `ips`, with the family in `version`, and `routes`.
pub(super) fn split(result: &mut Members) -> Result<(), ConvertError> {
    let (mut ips, mut routes) = (Vec::new(), Vec::new());
    for (key, family) in FAMILIES {
        let mut ip = match result.remove(key) {
            None | Some(Value::Null) => continue,
            Some(Value::Object(ip)) => ip,
            Some(other) => return Err(wrong(key, &other, "an object")),
        };
        let cidr = ip.remove("ip").unwrap_or_default();
        address(&cidr)?;
        match ip.remove("routes") {
            None | Some(Value::Null) => {}
            Some(Value::Array(list)) => routes.extend(list),
            Some(other) => return Err(wrong("routes", &other, "a list")),
        }
        ip.insert("address".to_owned(), cidr);
        ip.insert("version".to_owned(), family.into());
        ips.push(Value::Object(ip));
    }
    for (key, list) in [("ips", ips), ("routes", routes)] {
        if !list.is_empty() {
            result.insert(key.to_owned(), Value::Array(list));
        }
    }
    Ok(())
}

/// The way back: the first address of each family, and the routes of the families that have one.
/// These versions have no interfaces.
pub(super) fn join(result: &mut Members, version: &str) -> Result<(), ConvertError> {
    result.remove("interfaces");
    let (ips, routes) = (list(result, "ips"), list(result, "routes"));
    for (key, family) in FAMILIES {
        let of_family = |ip: &&Members| ip.get("version").and_then(Value::as_str) == Some(family);
        let Some(mut ip) = ips.iter().filter_map(Value::as_object).find(of_family).cloned() else { continue };
        for newer in ["version", "interface"] {
            ip.remove(newer);
        }
        let cidr = ip.remove("address").unwrap_or_default();
        ip.insert("ip".to_owned(), cidr);
        let routes: Vec<_> = routes.iter().filter_map(|route| route_of(route, family)).collect();
        if !routes.is_empty() {
            ip.insert("routes".to_owned(), Value::Array(routes));
        }
        result.insert(key.to_owned(), Value::Object(ip));
    }
    let any = FAMILIES.iter().any(|(key, _)| result.contains_key(*key));
    if any { Ok(()) } else { Err(ConvertError::NoAddress(version.to_owned())) }
}

fn list(result: &mut Members, key: &str) -> Vec<Value> {
    match result.remove(key) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    }
}

/// Returns a route of this family with `dst`, `gw` and the members that no version defines.
fn route_of(route: &Value, family: &str) -> Option<Value> {
    let mut route = route.as_object()?.clone();
    let v4 = address(route.get("dst")?).ok()?.is_ipv4();
    for newer in ["mtu", "advmss", "priority", "table", "scope"] {
        route.remove(newer);
    }
    (v4 == (family == "4")).then(|| json!(route))
}
