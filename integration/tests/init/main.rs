//! `gybe init` and `gybe validate` as a pod's init containers call them, in network namespaces.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod orders;
mod place;
mod pod;
mod validation;
mod writing;
