//! docs/FAULTS.md says what the names of the tests say.

use gybe_integration::complaint::Complaint;
use gybe_integration::faults::{matrix, shown};
use std::fs;
use std::path::Path;

#[test]
fn the_matrix_is_what_the_tests_say() -> Result<(), Complaint> {
    // A test runs in its package's directory.
    let root = Path::new("..");
    let made = matrix(&shown(root)?)?;
    let kept = fs::read_to_string(root.join("docs/FAULTS.md"))?;
    let first = made.lines().zip(kept.lines()).find(|(made, kept)| made != kept);
    assert!(made == kept, "docs/FAULTS.md is not what the tests say, run: make faults\nfirst: {first:#?}");
    Ok(())
}
