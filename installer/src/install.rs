//! Into a node, healed there, upgraded and out again.

pub mod conflist;
pub mod entry;
pub mod json;
pub mod loads;
pub mod seen;
