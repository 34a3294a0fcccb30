//! Which address families are redirected: Istio's rule, and what an operator may want instead.
//!
//! Pure: takes the namespace's addresses in the kernel's order (docs/ISTIO.md, section 2.5).

use crate::conf::Ipv6Choice;
use crate::pod::PodFacts;
use gybe_netfilter::hint::Hint;
use gybe_netfilter::policy::Families;
use std::borrow::Cow;
use std::net::IpAddr;

/// Does the pod's proxy listen on both families?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stack {
    /// On the family of the pod's first address.
    Single,
    /// On both: `ISTIO_DUAL_STACK` says so.
    Dual,
}

/// Why families cannot be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FamiliesError {
    /// Nothing but loopback and link-local.
    #[error("no valid local address found in the pod's namespace")]
    NoAddress,
    /// The operator wants no pod with IPv6 past its proxy.
    #[error("the pod's IPv6 would be left alone, and ipv6 is reject")]
    Ipv6LeftAlone,
}

impl Hint for FamiliesError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        let hint = match self {
            Self::NoAddress => "gybe-cni must stand behind the plugin that gives the pod its addresses",
            Self::Ipv6LeftAlone => {
                "set ISTIO_DUAL_STACK=true on istio-proxy, or ipv6 to auto, redirect or leave"
            }
        };
        Some(hint.into())
    }
}

/// The variable by which a proxy says that it listens on both families.
pub(crate) const DUAL_STACK: &str = "ISTIO_DUAL_STACK";

/// What the pod's proxy says about itself.
pub fn stack(pod: &PodFacts) -> Stack {
    match pod.proxy().and_then(|proxy| proxy.says(DUAL_STACK)) {
        Some(true) => Stack::Dual,
        _ => Stack::Single,
    }
}

/// Chooses the families. IPv4 is always redirected.
///
/// # Errors
/// When the namespace has no address yet, or IPv6 that the operator wants refused.
pub fn choose(choice: Ipv6Choice, stack: Stack, addresses: &[IpAddr]) -> Result<Families, FamiliesError> {
    let mut usable = addresses.iter().map(IpAddr::to_canonical).filter(is_usable);
    let first = usable.next().ok_or(FamiliesError::NoAddress)?;
    let any_v6 = first.is_ipv6() || usable.any(|address| address.is_ipv6());
    let istio = match stack {
        Stack::Single => first.is_ipv6(),
        Stack::Dual => any_v6,
    };
    let v6 = match choice {
        Ipv6Choice::Redirect => any_v6,
        Ipv6Choice::Leave => false,
        Ipv6Choice::Reject if any_v6 && !istio => return Err(FamiliesError::Ipv6LeftAlone),
        Ipv6Choice::Auto | Ipv6Choice::Reject => istio,
    };
    Ok(if v6 { Families::V4AndV6 } else { Families::V4Only })
}

/// Does the namespace have IPv6 that `families` leaves alone? Worth a word in every report.
pub fn ipv6_left_alone(families: Families, addresses: &[IpAddr]) -> bool {
    families == Families::V4Only
        && addresses.iter().map(IpAddr::to_canonical).any(|a| a.is_ipv6() && is_usable(&a))
}

fn is_usable(address: &IpAddr) -> bool {
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
    fn the_first_address_decides_unless_somebody_says_otherwise() {
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
            let choices = [Ipv6Choice::Auto, Ipv6Choice::Redirect, Ipv6Choice::Leave, Ipv6Choice::Reject];
            for (stack, wants) in [(Stack::Single, single), (Stack::Dual, dual)] {
                for (choice, want) in choices.into_iter().zip(wants) {
                    assert_eq!(
                        &choose(choice, stack, &addresses(text)),
                        want,
                        "{text}: {stack:?} {choice:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn ipv6_that_is_left_alone_is_noticed() {
        for (text, families, left) in [
            ("10.0.0.5 fd00::5", Families::V4Only, true),
            ("10.0.0.5 fd00::5", Families::V4AndV6, false),
            ("10.0.0.5 ::1 fe80::5", Families::V4Only, false),
        ] {
            assert_eq!(ipv6_left_alone(families, &addresses(text)), left, "{text} {families:?}");
        }
    }
}
