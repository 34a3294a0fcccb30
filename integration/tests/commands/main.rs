//! The built `gybe` as an operator runs it: apply, inspect, verify, render, doctor, demo.

#[cfg(test)]
mod command_line;
#[cfg(test)]
mod demo;
#[cfg(test)]
mod doctor;
#[cfg(test)]
mod render;
