//! The types that every room speaks: policies, rules, inventories of rules, packets, and hints of errors.

pub mod exemption;
pub mod inventory;
pub mod packet;
pub mod policy;
pub mod ruleset;

use std::borrow::Cow;

/// An error, or another finding, that may have a known remedy. Every error of the workspace that has one implements it;
/// the programs print the hint after the error.
pub trait Hint {
    /// What to do about it: a lower-case phrase in the imperative, or the missing condition. `None`: nothing
    /// better than the error's own text is known.
    fn hint(&self) -> Option<Cow<'static, str>>;
}
