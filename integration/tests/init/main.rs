//! `gybe init` and `gybe validate` as a pod's init containers call them, in pods made of namespaces.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it did not expect has nothing better to do"
)]

mod orders;
mod place;
mod pod;
mod validation;
mod writing;
