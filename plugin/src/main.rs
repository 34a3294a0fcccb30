//! The program `gybe-cni`: hands the runtime's call to the library and sends its answer.

#![no_main]

mod start;

use gybe_plugin::call;
use gybe_plugin::request::{Environment, VARIABLES};

/// The variables of the protocol; a runtime's others are not even looked at.
fn environment() -> Environment {
    VARIABLES.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))).collect()
}

fn run() -> i32 {
    call::answer(&environment(), start::stdin()).send()
}
