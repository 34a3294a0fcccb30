//! The built plugin with the built node agent: ADDs whose pods only the agent knows.
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
