//! Whether what became of a connection follows from what `trace` says of its first packet. Knows
//! neither whose connection it was nor how it was made.

use crate::testnet::outcome::ConnectionOutcome;
use gybe_netfilter::trace;
use nix::errno::Errno;
use std::net::SocketAddr;

/// What a redirect does to a connection beside the rules its first packet meets. `trace` knows rules
/// alone; each of these is something else, and has to be claimed by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SideEffect {
    /// Nothing: when the rules leave it alone, it ends as it ends without them.
    Nothing,
    /// The address it comes from is there only with the redirect: `::6`.
    ItsSource,
    /// It comes from an address that is not the pod's, so that its answers go astray, unless the
    /// redirect's marks and routes bring them back.
    PerhapsItsAnswers,
    /// Its answers do not come back: they go to an address that is not the pod's, or meet rules that
    /// take them for the proxy's.
    LosesItsAnswers,
}

/// Does `after` follow from what `trace` foretold of a connection to `to` that ends as `before`
/// where there are no rules?
pub fn follows(
    foretold: trace::PacketOutcome,
    (to, before): (SocketAddr, &ConnectionOutcome),
    beside: SideEffect,
    after: &ConnectionOutcome,
) -> bool {
    let astray = match beside {
        SideEffect::LosesItsAnswers => return *after == ConnectionOutcome::Timeout,
        SideEffect::PerhapsItsAnswers => {
            *before == ConnectionOutcome::Timeout && *after == ConnectionOutcome::Timeout
        }
        SideEffect::Nothing | SideEffect::ItsSource => false,
    };
    astray
        || match foretold {
            trace::PacketOutcome::Redirected(port) | trace::PacketOutcome::Intercepted(port) => {
                matches!(after, ConnectionOutcome::Answered(answer) if answer.by == format!("envoy:{port}")
                    && answer.original.is_none_or(|original| original == to))
            }
            trace::PacketOutcome::Untouched => left_alone((to, before), beside, after),
            trace::PacketOutcome::Dropped => *after == ConnectionOutcome::Timeout,
        }
}

/// An answer's other words are about who asks and about conntrack: they may differ.
fn left_alone(
    (to, before): (SocketAddr, &ConnectionOutcome),
    beside: SideEffect,
    after: &ConnectionOutcome,
) -> bool {
    match (before, after) {
        (ConnectionOutcome::Answered(before), ConnectionOutcome::Answered(after)) => before.by == after.by,
        (ConnectionOutcome::Failed(Errno::EADDRNOTAVAIL), ConnectionOutcome::Answered(after))
            if beside == SideEffect::ItsSource =>
        {
            after.by == format!("app:{}", to.port())
        }
        (ConnectionOutcome::Timeout, ConnectionOutcome::Answered(after))
            if beside == SideEffect::PerhapsItsAnswers =>
        {
            after.by == format!("app:{}", to.port())
        }
        (before, after) => before == after && beside != SideEffect::ItsSource,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_netfilter::trace::PacketOutcome::{Dropped, Intercepted, Redirected, Untouched};

    const APP: &str = "app:80 src=10.0.0.2";
    const PROXY: &str = "envoy:15001 orig=10.0.0.1:80 src=10.0.0.2";
    const NO_ADDRESS: &str = "ERR [Errno 99] Cannot assign requested address";

    #[test]
    fn every_fate_must_follow_and_silence_follows_from_nothing_by_itself() {
        let proxy = 15001.try_into().unwrap();
        for (foretold, beside, before, after, right) in [
            (Redirected(proxy), SideEffect::Nothing, APP, PROXY, true),
            (Intercepted(proxy), SideEffect::Nothing, APP, PROXY, true),
            (Redirected(proxy), SideEffect::Nothing, APP, APP, false),
            (Redirected(proxy), SideEffect::Nothing, APP, "envoy:15006 src=10.0.0.2", false),
            (Redirected(proxy), SideEffect::Nothing, APP, "envoy:15001 orig=10.0.0.9:80 src=10.0.0.2", false),
            (Redirected(proxy), SideEffect::Nothing, APP, "timeout", false),
            (Redirected(proxy), SideEffect::Nothing, "timeout", "timeout", false),
            (Redirected(proxy), SideEffect::Nothing, APP, "refused", false),
            (Redirected(proxy), SideEffect::PerhapsItsAnswers, "timeout", "timeout", true),
            (Redirected(proxy), SideEffect::PerhapsItsAnswers, APP, "timeout", false),
            (Untouched, SideEffect::Nothing, APP, APP, true),
            (Untouched, SideEffect::Nothing, APP, "app:80 orig=10.0.0.1:80 src=10.0.0.3", true),
            (Untouched, SideEffect::Nothing, APP, PROXY, false),
            (Untouched, SideEffect::Nothing, APP, "timeout", false),
            (Untouched, SideEffect::Nothing, "timeout", "timeout", true),
            (Untouched, SideEffect::Nothing, "timeout", APP, false),
            (Untouched, SideEffect::Nothing, NO_ADDRESS, NO_ADDRESS, true),
            (Untouched, SideEffect::Nothing, NO_ADDRESS, APP, false),
            (Untouched, SideEffect::ItsSource, NO_ADDRESS, APP, true),
            (Untouched, SideEffect::ItsSource, NO_ADDRESS, NO_ADDRESS, false),
            (Untouched, SideEffect::PerhapsItsAnswers, "timeout", APP, true),
            (Untouched, SideEffect::PerhapsItsAnswers, "timeout", PROXY, false),
            (Untouched, SideEffect::LosesItsAnswers, APP, "timeout", true),
            (Untouched, SideEffect::LosesItsAnswers, APP, APP, false),
            (Dropped, SideEffect::Nothing, APP, "timeout", true),
            (Dropped, SideEffect::Nothing, APP, APP, false),
        ] {
            let (before, found) = (before.parse().unwrap(), after.parse().unwrap());
            let to = "10.0.0.1:80".parse().unwrap();
            let said = follows(foretold, (to, &before), beside, &found);
            assert_eq!(said, right, "{foretold:?} {beside:?}: {before}, then {after}");
        }
    }
}
