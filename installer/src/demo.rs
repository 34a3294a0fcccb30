//! A world made of network namespaces, in which a redirect can be seen at work: its parts, and the
//! play that `gybe demo` gives in it.
//!
//! ```text
//!   namespace · link · listener · caller        the parts; the tests of real packets use them too
//!   stage ─► connections without Gybe ─► add (watched) ─► connections with it ─► report
//! ```

pub mod add;
pub mod connections;
pub mod foretold;
pub mod play;
pub mod report;
pub mod stage;
pub mod watched;
