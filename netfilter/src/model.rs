//! The types that every room speaks: policies, rules, inventories of rules, packets, hooks, and hints of errors.

pub mod hint;
pub mod hooks;
pub mod inventory;
pub mod packet;
pub mod policy;
pub mod ruleset;
