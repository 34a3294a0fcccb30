//! Compares the outcome of a connection with the prediction from the rules for its first packet.

use crate::testnet::outcome::ConnectionOutcome;
use gybe_netfilter::inspect::live::Outcome;
use nix::errno::Errno;
use std::net::SocketAddr;

/// An effect of a redirect on a connection that the rules alone do not show. The caller names it for each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SideEffect {
    /// None: a connection that the rules leave alone ends as it does without them.
    None,
    /// The redirect adds the connection's source address, `::6`.
    AddsSource,
    /// The source address is not the pod's, so replies are lost unless the redirect's marks and routes return
    /// them.
    MayLoseReplies,
    /// Replies are lost: they go to an address that is not the pod's, or match rules for the proxy.
    LosesReplies,
}

/// A connection's destination and its outcome without rules.
#[derive(Debug, Clone, Copy)]
pub struct Control<'a> {
    pub to: SocketAddr,
    pub outcome: &'a ConnectionOutcome,
}

/// Reports whether `outcome` follows from the prediction for the same connection without rules.
pub fn follows(
    predicted: Outcome,
    control: Control<'_>,
    side_effect: SideEffect,
    outcome: &ConnectionOutcome,
) -> bool {
    let replies_lost = match side_effect {
        SideEffect::LosesReplies => return *outcome == ConnectionOutcome::Timeout,
        SideEffect::MayLoseReplies => {
            *control.outcome == ConnectionOutcome::Timeout && *outcome == ConnectionOutcome::Timeout
        }
        SideEffect::None | SideEffect::AddsSource => false,
    };
    replies_lost
        || match predicted {
            Outcome::Redirected(port) | Outcome::Intercepted(port) => {
                matches!(outcome, ConnectionOutcome::Replied(reply) if reply.by == format!("envoy:{port}")
                    && reply.original.is_none_or(|original| original == control.to))
            }
            Outcome::Untouched => is_untouched(control, side_effect, outcome),
            Outcome::Dropped => *outcome == ConnectionOutcome::Timeout,
            Outcome::Translated(_) | Outcome::RepliesLost | Outcome::Unknown => false,
        }
}

/// The other members of a reply depend on the client and on conntrack, so they may differ.
fn is_untouched(control: Control<'_>, side_effect: SideEffect, outcome: &ConnectionOutcome) -> bool {
    let by_the_app = |by: &str| by == format!("app:{}", control.to.port());
    match (control.outcome, outcome) {
        (ConnectionOutcome::Replied(before), ConnectionOutcome::Replied(after)) => before.by == after.by,
        (ConnectionOutcome::Failed(Errno::EADDRNOTAVAIL), ConnectionOutcome::Replied(after))
            if side_effect == SideEffect::AddsSource =>
        {
            by_the_app(&after.by)
        }
        (ConnectionOutcome::Timeout, ConnectionOutcome::Replied(after))
            if side_effect == SideEffect::MayLoseReplies =>
        {
            by_the_app(&after.by)
        }
        (before, after) => before == after && side_effect != SideEffect::AddsSource,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Outcome::{Dropped, Intercepted, Redirected, Untouched};

    const APP: &str = "app:80 src=10.0.0.2";
    const PROXY: &str = "envoy:15001 orig=10.0.0.1:80 src=10.0.0.2";
    const NO_ADDRESS: &str = "ERR [Errno 99] Cannot assign requested address";

    #[test]
    fn an_outcome_must_follow_from_the_prediction_and_a_timeout_needs_a_reason() {
        let proxy = 15001.try_into().unwrap();
        for (predicted, side_effect, before, after, expected) in [
            (Redirected(proxy), SideEffect::None, APP, PROXY, true),
            (Intercepted(proxy), SideEffect::None, APP, PROXY, true),
            (Redirected(proxy), SideEffect::None, APP, APP, false),
            (Redirected(proxy), SideEffect::None, APP, "envoy:15006 src=10.0.0.2", false),
            (Redirected(proxy), SideEffect::None, APP, "envoy:15001 orig=10.0.0.9:80 src=10.0.0.2", false),
            (Redirected(proxy), SideEffect::None, APP, "timeout", false),
            (Redirected(proxy), SideEffect::None, "timeout", "timeout", false),
            (Redirected(proxy), SideEffect::None, APP, "refused", false),
            (Redirected(proxy), SideEffect::MayLoseReplies, "timeout", "timeout", true),
            (Redirected(proxy), SideEffect::MayLoseReplies, APP, "timeout", false),
            (Untouched, SideEffect::None, APP, APP, true),
            (Untouched, SideEffect::None, APP, "app:80 orig=10.0.0.1:80 src=10.0.0.3", true),
            (Untouched, SideEffect::None, APP, PROXY, false),
            (Untouched, SideEffect::None, APP, "timeout", false),
            (Untouched, SideEffect::None, "timeout", "timeout", true),
            (Untouched, SideEffect::None, "timeout", APP, false),
            (Untouched, SideEffect::None, NO_ADDRESS, NO_ADDRESS, true),
            (Untouched, SideEffect::None, NO_ADDRESS, APP, false),
            (Untouched, SideEffect::AddsSource, NO_ADDRESS, APP, true),
            (Untouched, SideEffect::AddsSource, NO_ADDRESS, NO_ADDRESS, false),
            (Untouched, SideEffect::MayLoseReplies, "timeout", APP, true),
            (Untouched, SideEffect::MayLoseReplies, "timeout", PROXY, false),
            (Untouched, SideEffect::LosesReplies, APP, "timeout", true),
            (Untouched, SideEffect::LosesReplies, APP, APP, false),
            (Dropped, SideEffect::None, APP, "timeout", true),
            (Dropped, SideEffect::None, APP, APP, false),
        ] {
            let (control, outcome) = (before.parse().unwrap(), after.parse().unwrap());
            let control = Control { to: "10.0.0.1:80".parse().unwrap(), outcome: &control };
            let found = follows(predicted, control, side_effect, &outcome);
            assert_eq!(found, expected, "{predicted:?} {side_effect:?}: {before}, then {after}");
        }
    }
}
