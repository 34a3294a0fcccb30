//! What a test says when it cannot be held: the whole chain of causes, and the line that would help.

use gybe_installer::testnet::identity::IdentityError;
use gybe_installer::testnet::link::LinkError;
use gybe_installer::testnet::namespace::NamespaceError;
use gybe_netfilter::hint::Hint;
use std::borrow::Cow;
use std::error::Error;
use std::fmt;

/// Any error, told for people. A test that returns one fails with that text.
pub struct Complaint(String);

impl<E: Error + 'static> From<E> for Complaint {
    fn from(error: E) -> Self {
        let (mut text, mut hint) = (error.to_string(), help(&error));
        let mut cause = error.source();
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            hint = hint.or_else(|| help(error));
            cause = error.source();
        }
        Self(text + &hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default())
    }
}

fn help(error: &(dyn Error + 'static)) -> Option<Cow<'static, str>> {
    let namespace = error.downcast_ref().and_then(NamespaceError::hint);
    let link = || error.downcast_ref().and_then(LinkError::hint);
    namespace.or_else(link).or_else(|| error.downcast_ref().and_then(IdentityError::hint))
}

impl Complaint {
    /// One with a text of its own.
    pub fn that(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
