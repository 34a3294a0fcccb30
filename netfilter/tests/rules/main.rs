//! The rules of policies without a kernel: the outcome of packets, the restore text of iptables, and the text of nft.
#![cfg(test)]

mod ambient;
mod iptables_text;
mod outcomes;
mod random;
mod read_back;

use gybe_netfilter::compile::compile;
use gybe_netfilter::inspect::show::show;
use gybe_netfilter::model::policy::{Families, RedirectPolicy};

/// For review in a diff; other tests check the effect of the rules.
#[test]
fn the_injectors_default_policy_is_shown_as_in_the_golden_file() {
    let policy = RedirectPolicy::injected(Families::V4AndV6);
    assert_eq!(show(&compile(&policy)), include_str!("injector-default.nft"));
}
