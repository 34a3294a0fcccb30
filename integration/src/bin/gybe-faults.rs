//! Prints the tests of every fault in docs/FAULTS.md: `make -C integration faults`.

use gybe_integration::failure::Failure;
use gybe_integration::faults::{catalogue, fault_tests, list};
use std::io::Write;
use std::path::Path;

fn main() -> Result<(), Failure> {
    let root = Path::new(".");
    Ok(std::io::stdout().write_all(list(&catalogue(root)?, &fault_tests(root)?).as_bytes())?)
}
