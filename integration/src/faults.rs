//! The matrix of faults and abuse: what can go wrong, what Gybe does then, and which tests show it.
//! What is in the catalogue stands in its file; who shows it is read from the names of the tests.

mod catalogue;
mod matrix;
mod sources;

pub use catalogue::{CATALOGUE, Fault};
pub use matrix::{MatrixError, matrix};
pub use sources::{Shown, SourceError, shown};
