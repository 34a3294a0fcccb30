//! Prints docs/FAULTS.md: `make faults`.

use gybe_integration::complaint::Complaint;
use gybe_integration::faults::{matrix, shown};
use std::io::Write;
use std::path::Path;

fn main() -> Result<(), Complaint> {
    let text = matrix(&shown(Path::new("."))?)?;
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}
