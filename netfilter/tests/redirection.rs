//! What a redirection does with its backend, whichever it is: held against the one that remembers. In
//! no policy here has routes, so no kernel is asked anything.
#![allow(clippy::unwrap_used, reason = "a test that meets what it did not expect has nothing better to do")]
