//! The network of the cluster: a switch, to which a link of each node leads, the addresses of the nodes, and the routes
//! to their pods.

use std::fmt;
use std::path::Path;

use gybe_containerd_tests::{HarnessError, SimulatedHost};

/// The name of the first node, which has the control plane.
pub(crate) const NODE: &str = "worker-1";
/// The first node's IPv4 address.
pub(crate) const NODE_ADDRESS: &str = "10.90.0.1";
/// The first node's IPv6 address.
pub(crate) const NODE_ADDRESS_6: &str = "fd00:90::1";
/// The ranges of services.
pub(crate) const SERVICE_RANGES: &str = "10.96.0.0/16,fd00:96::/112";
/// The address of the service `kubernetes`. It is the first node's, too: with the API server there, nothing needs a
/// translation of service addresses (kube-proxy).
pub(crate) const SERVICE_ADDRESS: &str = "10.96.0.1";
/// The address of the cluster's DNS server, which is each node's, too: kube-proxy's nftables mode drops a packet that a
/// node forwards to a service's address without a rule for it.
pub(crate) const DNS_ADDRESS: &str = "10.96.0.10";

/// The link of a node to the switch.
const LINK: &str = "node0";
/// The bridge of the switch.
const BRIDGE: &str = "switch";

/// The number of a node. Its names and addresses follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeNumber(u8);

impl NodeNumber {
    /// The node with the control plane.
    pub(crate) const FIRST: NodeNumber = NodeNumber(1);
    /// More nodes have no ranges for their pods.
    pub(crate) const MAX: u8 = 8;

    /// The first nodes, this many.
    pub(crate) fn up_to(count: u8) -> impl Iterator<Item = NodeNumber> {
        (1..=count.min(NodeNumber::MAX)).map(NodeNumber)
    }

    pub(crate) fn address(self) -> String {
        format!("10.90.0.{}", self.0)
    }

    pub(crate) fn address_6(self) -> String {
        format!("fd00:90::{:x}", self.0)
    }

    /// The ranges of the pods, IPv4 and IPv6.
    pub(crate) fn pods(self) -> [String; 2] {
        self.ranges(88)
    }

    /// The ranges of the pods in a second network.
    pub(crate) fn pods_of_second_network(self) -> [String; 2] {
        self.ranges(89)
    }

    fn ranges(self, network: u8) -> [String; 2] {
        let index = self.0.saturating_sub(1);
        [format!("10.{network}.{}.0/20", u16::from(index) * 16), format!("fd00:{network}:0:{index:x}::/64")]
    }
}

/// The node's name.
impl fmt::Display for NodeNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker-{}", self.0)
    }
}

/// The switch, in namespaces of its own: no rules of a node see what other nodes send to each other.
pub(crate) struct Switch(SimulatedHost);

impl Switch {
    pub(crate) fn start(host_init: &Path) -> Result<Switch, HarnessError> {
        let host = SimulatedHost::start(host_init)?;
        ip(&host, &["link", "add", BRIDGE, "type", "bridge", "mcast_snooping", "0"])?;
        ip(&host, &["link", "set", BRIDGE, "up"])?;
        Ok(Switch(host))
    }

    /// Gives a node its link, its addresses, and routes to the pods of all nodes that there may be. Components derive
    /// addresses from the default route, which leads nowhere.
    pub(crate) fn connect(&self, number: NodeNumber, host: &SimulatedHost) -> Result<(), HarnessError> {
        let port = number.to_string();
        // The kernel may not have removed the link of a node that has ended.
        let _ = ip(&self.0, &["link", "delete", &port]);
        self.0.connect(&port, host, LINK)?;
        ip(&self.0, &["link", "set", &port, "master", BRIDGE, "up"])?;
        ip(host, &["link", "set", LINK, "up"])?;
        let (four, six) = (format!("{}/24", number.address()), format!("{}/64", number.address_6()));
        for address in [&four, &six, &format!("{DNS_ADDRESS}/32")] {
            ip(host, &["address", "add", address, "dev", LINK])?;
        }
        if number == NodeNumber::FIRST {
            ip(host, &["address", "add", &format!("{SERVICE_ADDRESS}/32"), "dev", LINK])?;
        } else {
            ip(host, &["route", "add", SERVICE_ADDRESS, "via", NODE_ADDRESS])?;
        }
        ip(host, &["route", "add", "default", "dev", LINK])?;
        for other in NodeNumber::up_to(NodeNumber::MAX).filter(|other| *other != number) {
            for ranges in [other.pods(), other.pods_of_second_network()] {
                for (range, gateway) in ranges.iter().zip([other.address(), other.address_6()]) {
                    ip(host, &["route", "add", range, "via", &gateway])?;
                }
            }
        }
        Ok(())
    }
}

fn ip(host: &SimulatedHost, arguments: &[&str]) -> Result<(), HarnessError> {
    host.run(Path::new("ip"), arguments).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_names_and_addresses_of_its_own() {
        let nodes: Vec<_> = NodeNumber::up_to(NodeNumber::MAX).collect();
        let (first, last) = (nodes[0], nodes[7]);
        assert_eq!(
            (first.to_string(), first.address(), first.address_6()),
            (NODE.into(), NODE_ADDRESS.into(), NODE_ADDRESS_6.into())
        );
        assert_eq!(first.pods(), ["10.88.0.0/20", "fd00:88:0:0::/64"]);
        assert_eq!(last.pods(), ["10.88.112.0/20", "fd00:88:0:7::/64"]);
        assert_eq!((last.address(), last.address_6()), ("10.90.0.8".into(), "fd00:90::8".into()));
    }
}
