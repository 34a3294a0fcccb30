//! The address families that are redirected: by Istio's rule, or by the key `ipv6`.
//!
//! Pure: takes the namespace's addresses in the kernel's order (docs/ISTIO.md, section 2.5).

use crate::conf::Ipv6Setting;
use crate::names::DUAL_STACK;
use crate::pod::PodFacts;
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::policy::Families;
use std::borrow::Cow;
use std::net::IpAddr;

/// The address families on which the pod's proxy listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stack {
    /// The family of the pod's first address.
    Single,
    /// Both, by `ISTIO_DUAL_STACK`.
    Dual,
}

/// Why families cannot be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FamiliesError {
    /// Only loopback and link-local addresses.
    #[error("no valid local address found in the pod's namespace")]
    NoAddress,
    /// `ipv6` is `reject`, and the pod's IPv6 would bypass its proxy.
    #[error("the pod's IPv6 would be left alone, and ipv6 is reject")]
    Ipv6LeftAlone,
}

impl Hint for FamiliesError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        let hint = match self {
            Self::NoAddress => {
                "place gybe-cni in the conflist behind the plugin that gives the pod its addresses"
            }
            Self::Ipv6LeftAlone => {
                "set ISTIO_DUAL_STACK=true on istio-proxy, or ipv6 to auto, redirect or leave"
            }
        };
        Some(hint.into())
    }
}

/// Returns the families on which the pod's proxy listens.
pub fn stack(pod: &PodFacts) -> Stack {
    match pod.proxy().and_then(|proxy| proxy.bool_env(DUAL_STACK)) {
        Some(true) => Stack::Dual,
        _ => Stack::Single,
    }
}

/// Chooses the families. IPv4 is always redirected.
///
/// # Errors
/// When the namespace has no address yet, or IPv6 that the configuration rejects.
pub fn choose(choice: Ipv6Setting, stack: Stack, addresses: &[IpAddr]) -> Result<Families, FamiliesError> {
    let mut usable = addresses.iter().map(IpAddr::to_canonical).filter(is_usable);
    let first = usable.next().ok_or(FamiliesError::NoAddress)?;
    let any_v6 = first.is_ipv6() || usable.any(|address| address.is_ipv6());
    let istio = match stack {
        Stack::Single => first.is_ipv6(),
        Stack::Dual => any_v6,
    };
    let v6 = match choice {
        Ipv6Setting::Redirect => any_v6,
        Ipv6Setting::Leave => false,
        Ipv6Setting::Reject if any_v6 && !istio => return Err(FamiliesError::Ipv6LeftAlone),
        Ipv6Setting::Auto | Ipv6Setting::Reject => istio,
    };
    Ok(if v6 { Families::V4AndV6 } else { Families::V4Only })
}

/// Reports whether the namespace has IPv6 addresses that `families` leaves alone; ADD logs it.
pub fn ipv6_left_alone(families: Families, addresses: &[IpAddr]) -> bool {
    families == Families::V4Only
        && addresses.iter().map(IpAddr::to_canonical).any(|a| a.is_ipv6() && is_usable(&a))
}

/// Reports whether other hosts can reach the address: it is neither loopback nor link-local.
pub fn is_usable(address: &IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.octets().starts_with(&[224, 0, 0]),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.segments()[0] & 0xff0f == 0xff02,
    };
    !address.is_loopback() && !link_local
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(text: &str) -> Vec<IpAddr> {
        text.split_whitespace().map(|address| address.parse().unwrap()).collect()
    }

    #[test]
    fn the_first_address_decides_unless_the_proxy_or_the_configuration_overrides_it() {
        let (v4, both) = (Ok(Families::V4Only), Ok(Families::V4AndV6));
        let (none, left) = (Err(FamiliesError::NoAddress), Err(FamiliesError::Ipv6LeftAlone));
        // addresses; single stack: auto, redirect, leave, reject; dual stack: the same
        for (text, single, dual) in [
            ("127.0.0.1 10.0.0.5 ::1 fe80::1", [&v4, &v4, &v4, &v4], [&v4, &v4, &v4, &v4]),
            ("127.0.0.1 ::1 fd00::5 fe80::1", [&both, &both, &v4, &both], [&both, &both, &v4, &both]),
            ("127.0.0.1 10.0.0.5 ::1 fd00::5", [&v4, &both, &v4, &left], [&both, &both, &v4, &both]),
            ("fd00::5 10.0.0.5", [&both, &both, &v4, &both], [&both, &both, &v4, &both]),
            ("169.254.1.1 fe80::5 fd00::5", [&both, &both, &v4, &both], [&both, &both, &v4, &both]),
            ("::ffff:10.0.0.5", [&v4, &v4, &v4, &v4], [&v4, &v4, &v4, &v4]),
            ("127.0.0.1 ::1", [&none; 4], [&none; 4]),
            ("169.254.1.1 fe80::5", [&none; 4], [&none; 4]),
            ("", [&none; 4], [&none; 4]),
        ] {
            let choices = [Ipv6Setting::Auto, Ipv6Setting::Redirect, Ipv6Setting::Leave, Ipv6Setting::Reject];
            for (stack, expected_families) in [(Stack::Single, single), (Stack::Dual, dual)] {
                for (choice, expected) in choices.into_iter().zip(expected_families) {
                    assert_eq!(
                        &choose(choice, stack, &addresses(text)),
                        expected,
                        "{text}: {stack:?} {choice:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn ipv6_that_is_left_alone_is_reported() {
        for (text, families, left) in [
            ("10.0.0.5 fd00::5", Families::V4Only, true),
            ("10.0.0.5 fd00::5", Families::V4AndV6, false),
            ("10.0.0.5 ::1 fe80::5", Families::V4Only, false),
        ] {
            assert_eq!(ipv6_left_alone(families, &addresses(text)), left, "{text} {families:?}");
        }
    }
}
