//! The error that tests and this library return.

use gybe_demo::testnet::namespace::{LinkError, NamespaceError};
use gybe_netfilter::kernel::sockets::IdentityError;
use gybe_netfilter::model::Hint;
use std::borrow::Cow;
use std::error::Error;
use std::fmt;

/// Any error with its chain of causes and the hint of the first cause that has one.
pub struct Failure(String);

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let (mut text, mut hint) = (error.to_string(), hint_of(&error));
        let mut cause = error.source();
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            hint = hint.or_else(|| hint_of(error));
            cause = error.source();
        }
        Self(text + &hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default())
    }
}

fn hint_of(error: &(dyn Error + 'static)) -> Option<Cow<'static, str>> {
    let namespace = error.downcast_ref().and_then(NamespaceError::hint);
    let link = || error.downcast_ref().and_then(LinkError::hint);
    namespace.or_else(link).or_else(|| error.downcast_ref().and_then(IdentityError::hint))
}

impl Failure {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// What failed, and its cause.
    pub fn because(what: impl fmt::Display, cause: impl Into<Self>) -> Self {
        Self(format!("{what}: {}", cause.into().0))
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
