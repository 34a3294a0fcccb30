//! Compiles the programs of the images as static programs: an image has no C library, and cargo gives all programs
//! of a package the same target features.

use std::path::Path;
use std::process::Command;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for name in ["pause", "workload"] {
        let source = format!("{name}/main.rs");
        println!("cargo:rerun-if-changed={source}");
        #[expect(
            clippy::disallowed_methods,
            reason = "cargo cannot link a single program of a package statically"
        )]
        let mut compiler = Command::new(std::env::var("RUSTC")?);
        let status = compiler
            .args(["--edition", "2024", &source, "-o"])
            .arg(Path::new(&std::env::var("OUT_DIR")?).join(name))
            .args(["-O", "-C", "target-feature=+crt-static"])
            .args(["-C", "panic=abort", "-C", "strip=symbols"])
            .args(["--target", &std::env::var("TARGET")?])
            .status()?;
        if !status.success() {
            return Err(format!("cannot compile {source}: rustc ended with {status}").into());
        }
    }
    Ok(())
}
