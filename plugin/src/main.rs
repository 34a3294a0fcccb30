//! The program `gybe-cni`: passes the runtime's call to the library and sends the reply.

use gybe_plugin::arena::Arena;
use gybe_plugin::dispatch;
use gybe_plugin::request::{CniVariables, VARIABLES};
use gybe_plugin::version::BUILD_MARK;
use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;

/// The first allocations of the program; the C library makes the others.
#[global_allocator]
static ARENA: Arena<{ 256 << 10 }> = Arena::new();

/// Kept in the program's file, which installers search for it.
#[used]
static MARK: &[u8] = BUILD_MARK.as_bytes();

/// The variables that the plugin reads.
fn environment() -> CniVariables {
    VARIABLES.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))).collect()
}

fn main() -> ExitCode {
    dispatch::handle(&environment(), io::stdin().as_fd()).send()
}
