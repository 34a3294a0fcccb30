//! The hint of an error: what an operator can do about it. Every error of the workspace that has one implements
//! [`Hint`]; the programs print it after the error.

use std::borrow::Cow;

/// An error, or another finding, that may have a known remedy.
pub trait Hint {
    /// What to do about it: a lower-case phrase in the imperative, or the missing condition. `None`: nothing
    /// better than the error's own text is known.
    fn hint(&self) -> Option<Cow<'static, str>>;
}
