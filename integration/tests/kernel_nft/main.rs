//! Writing rules, routes and addresses on this machine's kernel, in network namespaces of one test.
//!
//! These tests check that the kernel accepts and lists exactly what was written, and the errors if it does not; the
//! tests in `flows/` check what happens to packets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot be set up must stop"
)]
#![allow(clippy::indexing_slicing, reason = "a test that finds less than it expects must stop")]

mod apply;
mod forms;
mod refusal;
mod routes;
