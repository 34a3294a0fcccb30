//! `gybe install`, `gybe uninstall` and `gybe doctor` as an operator calls them, on a simulated node's directories.
//! The plugin here is a script that answers VERSION; the tests in `integration/` use the real plugin.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod coming;
mod doctor;
mod going;
mod istio;
mod node;
mod property;
mod surroundings;
