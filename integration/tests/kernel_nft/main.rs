//! Writing rules, routes and addresses on this machine's kernel, in network namespaces that live for
//! one test.
//!
//! What packets do is asked elsewhere; here it is whether the kernel takes, keeps and gives back
//! exactly what was written, and what is said when it does not.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot be set up must stop"
)]
#![allow(clippy::indexing_slicing, reason = "a test that finds less than it expects must stop")]

mod apply;
mod drift;
mod forms;
mod namespace;
mod netns;
mod refusal;
mod routes;
mod rules;
mod sets;
