//! The programs that a plugin certainly runs itself, from the same directories: those of IPAM, and of flannel's delegate.
//! Other plugins have IPAM types without a program (`azure-cns`), or run them elsewhere (Antrea's agent).

use std::collections::BTreeSet;

use crate::host::json::JsonValue;

/// The plugins that run the program of `ipam.type` (containernetworking/plugins v1.6, plugins/main; Calico v3.29,
/// cni-plugin/pkg/plugin).
const WITH_IPAM: [&str; 9] =
    ["bridge", "calico", "dummy", "host-device", "ipvlan", "macvlan", "ptp", "tap", "vlan"];
const FLANNEL: &str = "flannel";

pub(super) fn of(plugin: &str, conf: &JsonValue) -> BTreeSet<String> {
    let kind = |member: &str| {
        let kind = conf.field(member)?.field("type")?.as_text()?;
        Some(kind.to_owned()).filter(|kind| !kind.is_empty())
    };
    match plugin {
        // flannel-io/cni-plugin v1.6, flannel_linux.go: the defaults of what it delegates to.
        FLANNEL => {
            let delegate = kind("delegate").unwrap_or_else(|| "bridge".to_owned());
            let ipam = kind("ipam").unwrap_or_else(|| "host-local".to_owned());
            let ipam = Some(ipam).filter(|_| WITH_IPAM.contains(&delegate.as_str()));
            ipam.into_iter().chain([delegate]).collect()
        }
        _ if WITH_IPAM.contains(&plugin) => kind("ipam").into_iter().collect(),
        _ => BTreeSet::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::json;

    #[test]
    fn the_programs_that_a_plugin_runs_itself_are_found_where_they_are_certain() {
        for (conf, programs) in [
            (r#"{"type":"bridge","ipam":{"type":"host-local"}}"#, &["host-local"][..]),
            (r#"{"type":"calico","ipam":{"type":"calico-ipam"}}"#, &["calico-ipam"]),
            (r#"{"type":"bridge","ipam":{}}"#, &[]),
            (r#"{"type":"bridge","ipam":{"type":""}}"#, &[]),
            (r#"{"type":"azure-vnet","ipam":{"type":"azure-cns"}}"#, &[]),
            (r#"{"type":"antrea","ipam":{"type":"host-local"}}"#, &[]),
            (r#"{"type":"portmap"}"#, &[]),
            (r#"{"type":"flannel","delegate":{"hairpinMode":true}}"#, &["bridge", "host-local"]),
            (r#"{"type":"flannel","delegate":{"type":"ptp"},"ipam":{"type":"dhcp"}}"#, &["dhcp", "ptp"]),
            (r#"{"type":"flannel","delegate":{"type":"other"}}"#, &["other"]),
        ] {
            let tree = json::parse(conf.as_bytes()).unwrap();
            let plugin = tree.field("type").and_then(JsonValue::as_text).unwrap();
            let found: Vec<_> = of(plugin, &tree).into_iter().collect();
            assert_eq!(found, programs, "{conf}");
        }
    }
}
