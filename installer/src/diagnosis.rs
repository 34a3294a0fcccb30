//! What a node, a pod, or the values of another program's chart say, and why: for operators. Only `cli` uses it.

pub(crate) mod chart_values;
pub mod doctor;
pub mod explanation;
pub mod migration;
pub mod support_bundle;
