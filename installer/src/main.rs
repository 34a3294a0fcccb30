//! `gybe`: the operator's command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    gybe_installer::cli::run(std::env::args_os(), std::env::vars_os()).into()
}
