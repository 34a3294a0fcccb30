//! The demo: a pod and its peer make connections without Gybe's rules, the plugin gets an ADD, and they make the same
//! connections again. Other tests use its test network, its ADD and its comparison with predictions, too.
//!
//! ```text
//!   fixture ─► connections ─► add (traced) ─► connections again ─► report
//! ```

pub mod add;
pub mod connections;
pub mod report;
pub mod scenario;
pub mod testnet;
