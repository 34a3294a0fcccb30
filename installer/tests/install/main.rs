//! The installer's passes on real directories: choice of the conf file, repair, shapes, take-over, upgrade, uninstall.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod always;
mod attributes;
mod choices;
mod conflicts;
mod conflists;
mod ground;
mod leaving;
mod lives;
mod locks;
mod programs;
mod shapes;
mod takeover;
mod wants;
mod watches;
