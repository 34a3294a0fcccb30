//! The program `gybe-cni`: hands the runtime's call to the library and sends its answer.

use gybe_plugin::call;
use gybe_plugin::request::Environment;
use std::os::fd::AsFd;
use std::process::ExitCode;

fn main() -> ExitCode {
    let env: Environment = std::env::vars_os().collect();
    call::answer(&env, std::io::stdin().as_fd()).send()
}
