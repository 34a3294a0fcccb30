//! A program that does nothing, built with the options of `gybe-cni`: the cost of starting and ending a process.

fn main() {}
