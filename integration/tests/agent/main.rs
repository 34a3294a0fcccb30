//! Plugin and node agent together, as built: an ADD that only the agent can decide.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

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
