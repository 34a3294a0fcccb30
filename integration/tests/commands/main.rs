//! The built `gybe` as an operator runs it: apply, inspect, verify, render, doctor; and the demo.
#![cfg(test)]

mod command_line;
mod doctor;
mod inspect;
