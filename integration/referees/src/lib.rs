//! Compares Gybe's nftables encoder with reference encoders: other libraries write the same rule sets, and the kernel's
//! dumps must be equal. The crate has only tests.
//!
//! ```text
//!                        ┌─ gybe_netfilter::nft ─► namespace 1 ─┐            raw dump (mnl)
//! policy ─ compile ─► Ruleset ─ nftnl, libnftnl ─► namespace 2 ─┼─ read by ─ libnftnl's text
//!                        └─ rustables ───────────► namespace 3 ─┘            the `nft` program
//! ```
//!
//! The three encoders share no code below [`Ruleset`](gybe_netfilter::ruleset::Ruleset). The two reference encoders
//! share one translation of it to nf_tables expressions (`tests/agreement/expressions.rs`), which does not use Gybe's.
