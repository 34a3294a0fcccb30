//! Diagnoses for operators, of a node, of a pod and of the values of istio-cni's chart. Only `cli` uses them.

pub(crate) mod chart_values;
pub mod doctor;
pub mod explanation;
pub mod migration;
pub mod support_bundle;
