//! Plugin, agent and API server together: what an ADD comes to while something is wrong between them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up must stop"
)]
#![allow(clippy::print_stdout, reason = "how many ADDs failed")]
#![allow(clippy::disallowed_methods, reason = "an agent runs beside the test, and an ADD is a program")]

mod alone;
mod ground;
mod thousand;
