//! What the tests of real packets stand on: recorded flows, the network they were recorded in, and
//! the making of one connection after the other. The tests themselves are in `tests/`.

pub mod add;
pub mod callers;
pub mod complaint;
pub mod crowd;
pub mod differential;
pub mod errand;
pub mod faults;
pub mod foretell;
pub mod killed;
pub mod mutation;
pub mod peak;
pub mod programs;
pub mod prophecy;
pub mod run;
pub mod segment;
pub mod topology;
pub mod untouched;
pub mod vectors;
pub mod wishes;
