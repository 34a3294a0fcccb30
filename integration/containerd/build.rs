//! Compiles the pause program as a static program: its image has no C library, and cargo gives all programs of a
//! package the same target features.

use std::path::Path;
use std::process::Command;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=pause/main.rs");
    let program = Path::new(&std::env::var("OUT_DIR")?).join("pause");
    #[expect(
        clippy::disallowed_methods,
        reason = "cargo cannot link a single program of a package statically"
    )]
    let mut compiler = Command::new(std::env::var("RUSTC")?);
    let status = compiler
        .args(["--edition", "2024", "pause/main.rs", "-o"])
        .arg(program)
        .args(["-O", "-C", "target-feature=+crt-static"])
        .args(["-C", "panic=abort", "-C", "strip=symbols"])
        .args(["--target", &std::env::var("TARGET")?])
        .status()?;
    if !status.success() {
        return Err(format!("cannot compile pause/main.rs: rustc ended with {status}").into());
    }
    Ok(())
}
