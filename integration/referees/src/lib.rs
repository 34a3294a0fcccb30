//! Referees of our nftables encoder: libraries of other people write the same rule sets, and the
//! kernel is asked whether it sees a difference. All of it is tests; nothing is exported.
//!
//! ```text
//!                        ┌─ gybe_netfilter::nft ─► namespace 1 ─┐            raw dump (mnl)
//! policy ─ compile ─► Ruleset ─ nftnl, libnftnl ─► namespace 2 ─┼─ read by ─ libnftnl's text
//!                        └─ rustables ───────────► namespace 3 ─┘            the `nft` program
//! ```
//!
//! Three encoders share no line of code below the neutral [`Ruleset`](gybe_netfilter::ruleset::Ruleset).
//! The referees do share one reading of it (`tests/agreement/words.rs`), made without ours.
