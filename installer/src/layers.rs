//! An error with all its layers in one line: they are joined once, at the edge.

use std::error::Error;

/// Each layer's sentence, the outermost first.
pub(crate) fn chain(error: &dyn Error) -> String {
    let below = std::iter::successors(error.source(), |cause: &&dyn Error| (*cause).source());
    below.fold(error.to_string(), |told, cause| format!("{told}: {cause}"))
}
