//! Plugin and node agent together, as built: an ADD that only the agent can decide.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it did not expect has nothing better to do"
)]

#[cfg(test)]
mod ground;
#[cfg(test)]
mod listens;
#[cfg(test)]
mod namespaces;
#[cfg(test)]
mod pods;
#[cfg(test)]
mod storm;
