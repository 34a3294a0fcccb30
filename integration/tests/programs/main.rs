//! Placement of the real plugin: while it runs, damaged during copying, on a full disk, in directories that are renamed on
//! the host.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "how often it was tried")]

#[cfg(test)]
mod damaged;
#[cfg(test)]
mod full;
#[cfg(test)]
mod node;
#[cfg(test)]
mod renamed;
#[cfg(test)]
mod replaced;
