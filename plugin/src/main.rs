//! The program `gybe-cni`: passes the runtime's call to the library and sends the reply.

#![no_main]

mod start;

use gybe_plugin::dispatch;
use gybe_plugin::request::{Environment, VARIABLES};

/// The variables that the plugin reads.
fn environment() -> Environment {
    VARIABLES.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))).collect()
}

fn run() -> i32 {
    dispatch::handle(&environment(), start::stdin()).send()
}
