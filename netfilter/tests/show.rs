//! The injector's default as text, for a reviewer's eye. What it does is asked elsewhere.

use gybe_netfilter::compile::compile;
use gybe_netfilter::policy::{Families, RedirectPolicy};
use gybe_netfilter::show::show;

#[test]
fn the_injectors_default_reads_like_this() {
    let policy = RedirectPolicy::injected(Families::V4AndV6);
    assert_eq!(show(&compile(&policy)), include_str!("golden/injector-default.nft"));
}
