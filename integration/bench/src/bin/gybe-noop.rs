//! A program that does nothing, built as `gybe-cni` is: what starting and ending any program costs.

fn main() {}
