//! docs/FAULTS.md names exactly the tests of faults that the workspace has.

use gybe_integration::failure::Failure;
use gybe_integration::faults::{catalogue, check, fault_tests};
use std::path::Path;

#[test]
fn every_fault_in_the_catalogue_has_a_test_and_every_test_of_a_fault_is_in_the_catalogue()
-> Result<(), Failure> {
    // Cargo runs a test in its package's directory.
    let root = Path::new("..");
    let catalogue = catalogue(root)?;
    let ids: Vec<&str> = catalogue.iter().map(|fault| fault.id.as_str()).collect();
    let faults = (1..=40).map(|n| format!("F{n:02}"));
    assert_eq!(ids, faults.chain((1..=11).map(|n| format!("A{n:02}"))).collect::<Vec<_>>());
    Ok(check(&catalogue, &fault_tests(root)?)?)
}
