//! Requests to the test API server over TLS, with a client that shows every byte of the responses.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed expectation ends the test"
)]

mod client;
mod faults;
mod lists_and_watches;
mod recordings;
