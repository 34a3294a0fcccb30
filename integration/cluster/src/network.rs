//! The node's network: a bridge with its addresses, inside the node's network namespace.

use std::path::Path;

use gybe_containerd_tests::SimulatedHost;
use gybe_integration::failure::Failure;

/// The node's name.
pub(crate) const NODE: &str = "worker-1";
/// The node's IPv4 address.
pub(crate) const NODE_ADDRESS: &str = "10.90.0.1";
/// The node's IPv6 address.
pub(crate) const NODE_ADDRESS_6: &str = "fd00:90::1";
/// The ranges of services.
pub(crate) const SERVICE_RANGES: &str = "10.96.0.0/16,fd00:96::/112";
/// The address of the service `kubernetes`. It is the node's, too: with the API server there, nothing needs a
/// translation of service addresses (kube-proxy).
pub(crate) const SERVICE_ADDRESS: &str = "10.96.0.1";
/// The address of the cluster's DNS server, which is the node's, too.
pub(crate) const DNS_ADDRESS: &str = "10.96.0.10";

/// Makes the bridge. Components derive addresses from the default route, which leads nowhere.
pub(crate) fn set_up(host: &SimulatedHost) -> Result<(), Failure> {
    let (four, six) = (format!("{NODE_ADDRESS}/24"), format!("{NODE_ADDRESS_6}/64"));
    let (service, dns) = (format!("{SERVICE_ADDRESS}/32"), format!("{DNS_ADDRESS}/32"));
    let commands: [&[&str]; 7] = [
        &["link", "add", "node0", "type", "bridge"],
        &["link", "set", "node0", "up"],
        &["address", "add", &four, "dev", "node0"],
        &["address", "add", &six, "dev", "node0"],
        &["address", "add", &service, "dev", "node0"],
        &["address", "add", &dns, "dev", "node0"],
        &["route", "add", "default", "dev", "node0"],
    ];
    for arguments in commands {
        host.run(Path::new("ip"), arguments)?;
    }
    Ok(())
}
