//! The injector's default policy as nft text, for review in a diff. Other tests check its effect.

use gybe_netfilter::compile::compile;
use gybe_netfilter::policy::{Families, RedirectPolicy};
use gybe_netfilter::show::show;

#[test]
fn the_injectors_default_equals_the_golden_file() {
    let policy = RedirectPolicy::injected(Families::V4AndV6);
    assert_eq!(show(&compile(&policy)), include_str!("golden/injector-default.nft"));
}
