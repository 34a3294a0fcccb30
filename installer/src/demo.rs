//! A world made of network namespaces, in which a redirect can be seen at work: its parts, and the
//! play that `gybe demo` gives in it.
//!
//! ```text
//!   namespace · link · listener · caller        the parts; the tests of real packets use them too
//!   stage ─► connections without Gybe ─► add (watched) ─► connections with it ─► report
//! ```

pub mod add;
pub mod caller;
pub mod connections;
pub mod fate;
pub mod foretold;
pub mod identity;
pub mod link;
pub mod listener;
pub mod namespace;
pub mod play;
pub mod report;
mod rtnetlink;
pub(crate) mod socket;
pub mod stage;
pub mod watched;
