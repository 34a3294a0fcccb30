//! Into a node, healed there, upgraded and out again.

pub mod conflist;
pub mod entry;
pub mod json;
