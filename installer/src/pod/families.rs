//! What is said about address families before a namespace is seen. How addresses decide is the
//! plugin's rule, for policy files too.

pub use gybe_netfilter::policy::Families;
pub use gybe_plugin::families::Stack;

use gybe_plugin::conf::Ipv6Setting;
use gybe_plugin::families;
use std::net::IpAddr;

/// Who decides about families.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FamilyChoice {
    /// Somebody did.
    Fixed(Families),
    /// The namespace's addresses (docs/ISTIO.md, section 2.5).
    ByAddresses(Stack),
}

/// The namespace has no address to go by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the namespace has no address but loopback and link-local ones, so its families cannot be known")]
pub struct NoAddress;

impl FamilyChoice {
    /// The families of a namespace with these addresses, given in the kernel's order.
    ///
    /// # Errors
    /// When the addresses decide and none is usable: loopback and link-local ones do not count.
    pub fn decide(self, addresses: &[IpAddr]) -> Result<Families, NoAddress> {
        match self {
            Self::Fixed(families) => Ok(families),
            // Left to the addresses, the rule fails for one reason only.
            Self::ByAddresses(stack) => {
                families::choose(Ipv6Setting::Auto, stack, addresses).map_err(|_| NoAddress)
            }
        }
    }
}
