//! The API server of the tests, asked over TLS by a client that sees every byte of its answers.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it did not expect has nothing better to do"
)]

mod client;
mod comings;
mod files;
mod lists;
mod recordings;
mod trouble;
mod watches;
