pub mod policy;
pub mod ruleset;
