//! `gybe install`, `gybe uninstall` and `gybe doctor` as an operator calls them, on directories of a
//! node's. The plugin here is a script that answers VERSION; the real one is in the integration crate.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that meets what it did not expect has nothing better to do"
)]

mod coming;
mod doctor;
mod going;
mod istio;
mod node;
mod property;
mod surroundings;
