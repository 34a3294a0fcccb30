//! Reference encoders: libnftnl (by the crates nftnl and mnl) and rustables write Gybe's rule sets. Each is a
//! [`Backend`](gybe_netfilter::apply::backend::Backend), so that its rules meet packets, `gybe verify` and `gybe remove`. The
//! crate is for tests, benchmarks and the program `gybe-referee`; no shipped program has it.
//!
//! ```text
//!                        ┌─ gybe_netfilter::nft::Nft ──────────────► namespace 1 ─┐            raw dump (mnl)
//! policy ─ compile ─► Ruleset ─ Libnftnl ──┐                                      ├─ read by ─ libnftnl's text
//!                        └──── Rustables ──┴─ mnl's socket ─► namespaces 2 and 3 ─┘            the `nft` program
//! ```
//!
//! The three encoders share no code below [`Ruleset`](gybe_netfilter::model::ruleset::Ruleset). The two reference encoders
//! share one translation of it to nf_tables expressions ([`expressions`]), which does not use Gybe's.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a panic ends a test, a benchmark or gybe-referee, and none of them is shipped"
)]

pub mod backend;
pub mod expressions;
pub mod libnftnl;
pub mod transport;
pub mod with_nftnl;
#[cfg(feature = "rustables")]
pub mod with_rustables;
